# gpu.cmake - the GPU of this machine: gpu_ops.<stem>, each ops/test_*.c with kvl_cuda_<op> wherever it says
# kvl_cpu_<op>, the store's test and that of attention on the host.  tests/run.sh --gpu asks for them; without
# a GPU they fail.
if(NOT KVL_GPU_TESTS)
  return()
endif()
if(NOT TARGET kvl_all_cuda)
  message(FATAL_ERROR "KVL_GPU_TESTS needs a build with CUDA (nvcc)")
endif()

file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/ops/test_*.c)
foreach(source IN LISTS sources ITEMS ${CMAKE_CURRENT_SOURCE_DIR}/unit/test_kvstore.c
        ${CMAKE_CURRENT_SOURCE_DIR}/unit/test_attend_host.c)
  get_filename_component(stem ${source} NAME_WE)
  string(REGEX REPLACE "^test_" "gpu_" program ${stem})
  add_executable(${program} ${source})
  target_link_libraries(${program} PRIVATE kvl_all_cuda kvl_ref PkgConfig::CMOCKA)
  target_include_directories(${program} PRIVATE ${KVL_CORE_DIRS} ${KVL_HARNESS_DIRS}
                             ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
  target_compile_definitions(${program} PRIVATE KVL_TEST_CUDA
                             KVL_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(stem STREQUAL "test_kvstore")
    target_link_options(${program} PRIVATE LINKER:--wrap=kvl_alloc,--wrap=mmap)
  elseif(NOT stem STREQUAL "test_attend_host")
    target_compile_options(${program} PRIVATE -include ${KVL_EMU_NAMES})
  endif()
  set_target_properties(${program} PROPERTIES ENABLE_EXPORTS ON)
  add_test(NAME gpu_ops.${stem} COMMAND ${program})
  set_tests_properties(gpu_ops.${stem} PROPERTIES LABELS gpu_ops TIMEOUT ${KVL_TEST_TIMEOUT}
                       RUN_SERIAL ON ENVIRONMENT KVL_LONG=1)
endforeach()
