# cuda_host.cmake - the CUDA kernels on the CPU (ops/cuda_host): the sources of core/ops/cuda compiled for C++.
#
#   ops_cuda.<stem>    each ops/test_*.c once more, with kvl_cuda_<op> wherever it says kvl_cpu_<op>
#   <folder>_cuda.*    tests of other folders, and scripts of e2e, that mention KVL_TEST_CUDA, once more
#   races.<stem>       ops_cuda.<stem> under the checker of races (cuda_host_races.h); with KVL_LONG=1 all of them,
#                      and every launch
#   kvlab_cuda_host    the program (and bench_goals_cuda_host), for which `--device cuda` is the emulated GPU
if(NOT CMAKE_CXX_COMPILER)
  message(STATUS "tests of the CUDA kernels left out: no compiler for C++ (g++)")
  return()
endif()

set(KVL_EMU_DIR ${CMAKE_CURRENT_SOURCE_DIR}/ops/cuda_host)
set(KVL_EMU_INCLUDE ${KVL_EMU_DIR} ${KVL_CORE_DIRS})
# Kernels look at memory through pointers of other types, as GPU code may.
set(KVL_EMU_OPTIONS -Wall -Wextra -Wno-unknown-pragmas -O2 -ffp-contract=off
    -fno-strict-aliasing $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
if(KVL_WERROR)
  list(APPEND KVL_EMU_OPTIONS -Werror)
endif()
# Enums come from C, where they are ints: what may be in one is for the operator to check.
if(KVL_SAN MATCHES "undefined")
  list(APPEND KVL_EMU_OPTIONS -fno-sanitize=enum)
endif()
# Without the instruction every fmaf is a call into the library of mathematics.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-march=native KVL_EMU_NATIVE)
if(KVL_EMU_NATIVE AND NOT CMAKE_CROSSCOMPILING)
  list(APPEND KVL_EMU_OPTIONS -march=native)
endif()

file(GLOB KVL_EMU_SRC CONFIGURE_DEPENDS ${KVL_EMU_DIR}/cuda_host_*.cc)
file(GLOB KVL_CUDA_SRC CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/core/ops/cuda/*.cu)
set_source_files_properties(${KVL_CUDA_SRC} PROPERTIES LANGUAGE CXX)
# Loops over registers, which nvcc unrolls.
foreach(stem gemm attn_prefill attn_prefill_sparse attn_columns)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/core/ops/cuda/${stem}.cu PROPERTIES COMPILE_OPTIONS -O3)
endforeach()
function(kvl_emu_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE ${KVL_EMU_INCLUDE})
  target_compile_definitions(${name} PRIVATE KVL_CUDA KVL_CUDA_HOST)
  target_compile_options(${name} PRIVATE ${KVL_EMU_OPTIONS})
  set_target_properties(${name} PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON
                        CXX_EXTENSIONS OFF)
endfunction()
kvl_emu_objects(kvl_cuda_host ${KVL_EMU_SRC} ${KVL_CUDA_SRC})

# Everything of core with the emulated GPU among the devices.
add_library(kvl_core_cuda_host INTERFACE)
target_link_libraries(kvl_core_cuda_host INTERFACE kvl_common)
kvl_objects(kvl_core_cuda_host kvl_device_cuda kvl_cuda_host)
# The same with the checker of races.  The kernels call it by the names of ThreadSanitizer, which is not linked.
if(NOT KVL_SAN AND NOT CMAKE_CROSSCOMPILING)
  set(KVL_EMU_TSAN -fsanitize=thread -g1)
  kvl_emu_objects(kvl_cuda_races_emu ${KVL_EMU_SRC})
  kvl_emu_objects(kvl_cuda_races ${KVL_CUDA_SRC})
  target_compile_definitions(kvl_cuda_races_emu PRIVATE KVL_EMU_RACES)
  target_compile_definitions(kvl_cuda_races PRIVATE KVL_EMU_RACES)
  target_compile_options(kvl_cuda_races PRIVATE ${KVL_EMU_TSAN})
  add_library(kvl_core_cuda_races INTERFACE)
  target_link_libraries(kvl_core_cuda_races INTERFACE kvl_common)
  kvl_objects(kvl_core_cuda_races kvl_device_cuda kvl_cuda_races_emu kvl_cuda_races)
endif()
set(KVL_EMU_LINK kvl_core_cuda_host)
if(TARGET kvl_app)
  list(APPEND KVL_EMU_LINK kvl_app)
endif()

file(STRINGS ${CMAKE_SOURCE_DIR}/core/include/kvl/ops.def ops REGEX "^KVL_OP\\(")
set(text "/* Generated from ops.def. */\n#define kvl_ops_cpu kvl_ops_cuda\n")
foreach(op IN LISTS ops)
  string(REGEX REPLACE "^KVL_OP\\(([a-z0-9_]+),.*" "\\1" op "${op}")
  string(APPEND text "#define kvl_cpu_${op} kvl_cuda_${op}\n")
endforeach()
set(KVL_EMU_NAMES ${CMAKE_CURRENT_BINARY_DIR}/cuda_names.h)
file(CONFIGURE OUTPUT ${KVL_EMU_NAMES} CONTENT "${text}" @ONLY)

function(kvl_emu_program name)
  set(link ${KVL_EMU_LINK})
  if(ARGN)
    set(link ${ARGN})
  endif()
  target_link_libraries(${name} PRIVATE ${link} kvl_ref PkgConfig::CMOCKA)
  target_include_directories(${name} PRIVATE ${KVL_EMU_INCLUDE} ${KVL_HARNESS_DIRS}
                             ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
  target_compile_definitions(${name} PRIVATE KVL_TEST_CUDA KVL_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON LINKER_LANGUAGE CXX CXX_STANDARD 17
                        CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
endfunction()

function(kvl_emu_test name)
  add_test(NAME ${name} COMMAND ${ARGN})
  string(REGEX REPLACE "\\..*" "" label ${name})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 LABELS ${label}
                       TIMEOUT ${KVL_TEST_TIMEOUT})
endfunction()

# Those that take minutes with KVL_LONG=1 alone.
set(KVL_EMU_SLOW_RACES test_attn_columns test_attn_mass test_attn_prefill test_attn_sparse test_matmul
    test_select_long)
function(kvl_emu_race_test stem source)
  if(NOT TARGET kvl_cuda_races)
    return()
  endif()
  string(REGEX REPLACE "^test_" "race_" program ${stem})
  add_executable(${program} ${source})
  kvl_emu_program(${program} kvl_core_cuda_races)
  target_compile_options(${program} PRIVATE -include ${KVL_EMU_NAMES})
  set(share "KVL_EMU_EVERY=64 exec $<TARGET_FILE:${program}>")
  if(stem IN_LIST KVL_EMU_SLOW_RACES)
    set(share "exit 77")
  endif()
  # Without a semicolon, which would part the word in two.
  kvl_emu_test(races.${stem} sh -c
               "[ -z \"\$KVL_LONG\" ] && ${share} || exec $<TARGET_FILE:${program}>")
  set_tests_properties(races.${stem} PROPERTIES ENVIRONMENT KVL_EMU_GUARD=0)
endfunction()

foreach(folder unit ops golden conformance gpu)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/test_*.c)
  foreach(source IN LISTS sources)
    file(STRINGS ${source} asks REGEX "KVL_TEST_CUDA")
    if(NOT folder STREQUAL "ops" AND NOT asks)
      continue()
    endif()
    get_filename_component(stem ${source} NAME_WE)
    string(REGEX REPLACE "^test_" "test_cuda_" program ${stem})
    add_executable(${program} ${source})
    kvl_emu_program(${program})
    if(folder STREQUAL "ops")
      target_compile_options(${program} PRIVATE -include ${KVL_EMU_NAMES})
      kvl_emu_race_test(${stem} ${source})
    endif()
    if(stem STREQUAL "test_conformance")
      add_dependencies(${program} host_loop)
      foreach(method IN LISTS KVL_METHOD_NAMES ITEMS host_loop)
        set(what ${method})
        if(method STREQUAL "host_loop")
          set(what $<TARGET_FILE:host_loop>)
        endif()
        kvl_emu_test(conformance_cuda.${method} ${program} ${what})
        # Tests of other folders guard the device's memory, which costs a system call per wait.
        set_tests_properties(conformance_cuda.${method} PROPERTIES TIMEOUT 3600
                             ENVIRONMENT KVL_EMU_GUARD=0)
      endforeach()
    else()
      kvl_emu_test(${folder}_cuda.${stem} ${program})
    endif()
  endforeach()
endforeach()
set_tests_properties(unit_cuda.test_archs unit_cuda.test_offload gpu_cuda.test_gpu_steps
                     conformance_cuda.test_prefill_layers
                     PROPERTIES ENVIRONMENT KVL_EMU_GUARD=0)

if(TARGET race_attn_decode)
  kvl_emu_test(races.barriers bash ${KVL_EMU_DIR}/barriers.sh $<TARGET_FILE:race_attn_decode> ${CMAKE_SOURCE_DIR})
endif()

# The emulation itself.
file(GLOB sources CONFIGURE_DEPENDS ${KVL_EMU_DIR}/test_*.cc)
foreach(source IN LISTS sources)
  get_filename_component(stem ${source} NAME_WE)
  set(races "")
  if(stem STREQUAL "test_cuda_races")
    if(NOT TARGET kvl_cuda_races)
      continue()
    endif()
    set(races kvl_core_cuda_races)
  endif()
  add_executable(${stem} ${source})
  kvl_emu_program(${stem} ${races})
  target_compile_definitions(${stem} PRIVATE KVL_CUDA_HOST $<$<BOOL:${races}>:KVL_EMU_RACES>)
  target_compile_options(${stem} PRIVATE ${KVL_EMU_OPTIONS} $<$<BOOL:${races}>:${KVL_EMU_TSAN}>)
  kvl_emu_test(cuda_host.${stem} ${stem})
endforeach()

if(TARGET kvl_app)
  add_executable(kvlab_cuda_host ${CMAKE_SOURCE_DIR}/harness/main.c)
  kvl_emu_program(kvlab_cuda_host)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/bench/goals/*.c)
  add_executable(bench_goals_cuda_host ${sources})
  kvl_emu_program(bench_goals_cuda_host)
  target_include_directories(bench_goals_cuda_host PRIVATE ${CMAKE_SOURCE_DIR}/results)
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/e2e/test_*.sh)
  foreach(script IN LISTS scripts)
    file(STRINGS ${script} asks REGEX "KVL_TEST_CUDA")
    if(asks)
      get_filename_component(stem ${script} NAME_WE)
      kvl_emu_test(e2e_cuda.${stem} bash ${script} $<TARGET_FILE:kvlab_cuda_host> ${CMAKE_SOURCE_DIR}
                   $<TARGET_FILE:bench_goals_cuda_host>)
      set_tests_properties(e2e_cuda.${stem} PROPERTIES ENVIRONMENT KVL_TEST_CUDA=1)
    endif()
  endforeach()
endif()

# What older GPUs take instead: other kernels for prefill, fewer steps ahead for decoding.
foreach(stem attn_prefill attn_decode)
  kvl_emu_test(ops_cuda.test_${stem}_older test_cuda_${stem})
  set_tests_properties(ops_cuda.test_${stem}_older PROPERTIES ENVIRONMENT KVL_EMU_GENERATION=8)
endforeach()
