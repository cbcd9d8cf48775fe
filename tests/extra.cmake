# Tests that are not cmocka programs.
find_program(SH_PROGRAM sh REQUIRED)
foreach(name check_layers check_layers_test)
    add_test(NAME ${name} COMMAND ${SH_PROGRAM} ${CMAKE_SOURCE_DIR}/tools/${name}.sh)
endforeach()
