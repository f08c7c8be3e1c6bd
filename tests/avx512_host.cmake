# avx512_host.cmake - the kernels for AVX-512 on processors with AVX2 (ops/avx512_host).
#
#   ops_avx512.<stem>    each ops/test_*.c once more, with KVL_AVX512_HOST=1 and these kernels in place of the processor's
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  return()
endif()

# Asked again every time: it may have been installed since.
include(CheckCSourceCompiles)
include(CMakePushCheckState)
unset(KVL_SIMDE_SERVES CACHE)
cmake_push_check_state(RESET)
set(CMAKE_REQUIRED_FLAGS "-mavx2 -mfma -mf16c")
set(CMAKE_REQUIRED_INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/ops/avx512_host ${KVL_CORE_DIRS})
check_c_source_compiles("#include \"avx512_host.h\"\nint main(void) { return 0; }" KVL_SIMDE_SERVES)
cmake_pop_check_state()
if(NOT KVL_SIMDE_SERVES)
  add_test(NAME ops_avx512.skipped
           COMMAND sh -c "echo 'no SIMDe that serves (libsimde-dev): the kernels for AVX-512 are not tested on other processors'; exit 77")
  set_tests_properties(ops_avx512.skipped PROPERTIES SKIP_RETURN_CODE 77 LABELS ops_avx512)
  return()
endif()

file(GLOB KVL_AVX512_HOST_SRC CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/ops/avx512_host/*.c)
add_library(kvl_avx512_host OBJECT ${KVL_AVX512_HOST_SRC})
target_include_directories(kvl_avx512_host PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/ops/avx512_host ${KVL_CORE_DIRS})
target_link_libraries(kvl_avx512_host PRIVATE OpenMP::OpenMP_C)
target_compile_options(kvl_avx512_host PRIVATE -O1 -mavx2 -mfma -mf16c -ffp-contract=off -Wno-pedantic -Wno-psabi
                       -Wno-uninitialized) # the upper half of a cast is undefined, as it is by the guide

file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/ops/test_*.c)
foreach(source IN LISTS sources)
  get_filename_component(stem ${source} NAME_WE)
  target_link_libraries(${stem} PRIVATE $<TARGET_OBJECTS:kvl_avx512_host>)
  target_link_options(${stem} PRIVATE LINKER:--wrap=kvl_kern,--wrap=kvl_kern_select,--wrap=kvl_ops_isa)
  add_dependencies(${stem} kvl_avx512_host)
  add_test(NAME ops_avx512.${stem} COMMAND ${stem})
  set_tests_properties(ops_avx512.${stem} PROPERTIES SKIP_RETURN_CODE 77 LABELS ops_avx512 TIMEOUT ${KVL_TEST_TIMEOUT}
                       ENVIRONMENT KVL_AVX512_HOST=1)
endforeach()
