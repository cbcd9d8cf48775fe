# Command line tests: every tests/cli/*.sh but lib.sh is one test (tests/cli/README.md).
find_program(SH_PROGRAM sh REQUIRED)
file(GLOB TAMIS_CLI_TESTS CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cli/*.sh)
if(TARGET tamis_cli)
    foreach(script ${TAMIS_CLI_TESTS})
        get_filename_component(name ${script} NAME_WE)
        tamis_is_test_left_out(cli_${name} is_left_out)
        if(NOT name STREQUAL "lib" AND NOT is_left_out)
            add_test(NAME cli_${name} COMMAND ${SH_PROGRAM} ${script})
            set_tests_properties(cli_${name} PROPERTIES TIMEOUT 600
                WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} ENVIRONMENT "TAMIS_BIN=$<TARGET_FILE:tamis_cli>")
        endif()
    endforeach()
endif()
