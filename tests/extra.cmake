# Tests that are not cmocka programs.
find_program(SH_PROGRAM sh REQUIRED)
foreach(name check_layers check_layers_test)
    add_test(NAME ${name} COMMAND ${SH_PROGRAM} ${PROJECT_SOURCE_DIR}/tools/${name}.sh)
endforeach()

# Every fuzz target runs over its corpus (fuzz/README.md).
file(GLOB TAMIS_FUZZ_TARGETS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fuzz/fuzz_*.c)
foreach(source ${TAMIS_FUZZ_TARGETS})
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE "fuzz_" "" name ${name})
    add_executable(replay_${name} ${source} ${PROJECT_SOURCE_DIR}/fuzz/replay.c)
    target_include_directories(replay_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(replay_${name} PRIVATE tamis tamis_flags PkgConfig::JANSSON Threads::Threads m)
    add_test(NAME replay_${name} COMMAND replay_${name} ${PROJECT_SOURCE_DIR}/fuzz/corpus/${name})
    set_tests_properties(replay_${name} PROPERTIES TIMEOUT 600)
endforeach()
