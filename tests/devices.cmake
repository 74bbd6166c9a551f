# What tests of devices are built from, here and where kernels are built alone.

# The CUDA device without a GPU (lib/cuda/emulated_device.h): its sources as C++, with a runtime of our own. It is one
# thread, of which ThreadSanitizer has nothing to say.
function(kelp_emulated_library)
  if(NOT KELP_FUZZER AND NOT KELP_SANITIZE STREQUAL "thread")
    file(GLOB emulated CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu
      ${PROJECT_SOURCE_DIR}/kernels/cuda/*/*.cu lib/cuda/emulated/*.cu)
    list(REMOVE_ITEM emulated ${PROJECT_SOURCE_DIR}/kernels/cuda/products.cu
      ${PROJECT_SOURCE_DIR}/kernels/cuda/conv2d/cudnn_library.cu)
    set_source_files_properties(${emulated} PROPERTIES LANGUAGE CXX)
    add_library(kelp_cuda_emulated STATIC ${emulated})
    # So few blocks fill a device that small cases have large tiles, and so few places are taken at a time that some
    # have several times.
    target_compile_definitions(kelp_cuda_emulated PRIVATE
      _GNU_SOURCE KELP_CUDA_CONV2D_FILL=4u KELP_CUDA_CONV2D_PLACES=1000u KELP_CUDA_EXACT_SCRATCH=1)
    target_include_directories(kelp_cuda_emulated BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/lib/cuda/emulated
      ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
    target_compile_options(kelp_cuda_emulated PRIVATE
      -Wall -Wextra -Werror -Wno-unused-parameter -ffp-contract=off -fno-omit-frame-pointer -g1)
    # Few rows are several of a thread's sums, and fill a device, as many do elsewhere.
    target_compile_definitions(kelp_cuda_emulated PRIVATE KELP_CUDA_NORM_RUN=4u KELP_CUDA_NORM_FILL=1u)
    if(KELP_SANITIZE)
      target_compile_options(kelp_cuda_emulated PRIVATE -fsanitize=${KELP_SANITIZE} -fno-sanitize-recover=all)
    endif()
  endif()
endfunction()

# The same with each access of a kernel told to a search for races (lib/cuda/emulated_races.h). That stands in
# ThreadSanitizer's place, which would come with the linker's option.
function(kelp_races_library)
  get_target_property(kernels kelp_cuda_emulated SOURCES)
  list(FILTER kernels EXCLUDE REGEX "/emulated/(runtime|cudnn)\\.cu$")
  set(kernels ${kernels} lib/cuda/races/planted.cu)
  set(runtime lib/cuda/emulated/runtime.cu lib/cuda/emulated/cudnn.cu lib/cuda/races/races.cu)
  set_source_files_properties(${kernels} ${runtime} PROPERTIES LANGUAGE CXX)
  add_library(kelp_cuda_traced OBJECT ${kernels})
  add_library(kelp_cuda_races STATIC ${runtime} $<TARGET_OBJECTS:kelp_cuda_traced>)
  foreach(target kelp_cuda_traced kelp_cuda_races)
    foreach(what COMPILE_DEFINITIONS COMPILE_OPTIONS INCLUDE_DIRECTORIES)
      get_target_property(like kelp_cuda_emulated ${what})
      set_target_properties(${target} PROPERTIES ${what} "${like}")
    endforeach()
    target_compile_definitions(${target} PRIVATE KELP_EMULATED_RACES)
  endforeach()
  target_compile_options(kelp_cuda_traced PRIVATE -O1 -fsanitize=thread)
  target_link_libraries(test_cuda_races PRIVATE kelp_cuda_races stdc++)
endfunction()

# The same on a GPU, where there is one (tests/gpu/run.sh): kelp_gpu_tests(LIBRARY ...).
function(kelp_gpu_tests)
  if(TARGET kelp-cuda)
    add_test(NAME cuda_ptx
      COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/gpu/check_ptx.sh ${PROJECT_SOURCE_DIR} ${CMAKE_CUDA_COMPILER}
        ${KELP_CUDA_KEPT})
    set_tests_properties(cuda_ptx PROPERTIES LABELS lint TIMEOUT 600 SKIP_RETURN_CODE 77)
    add_test(NAME gpu_limits COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/gpu/limits.sh ${PROJECT_SOURCE_DIR})
    set_tests_properties(gpu_limits PROPERTIES LABELS unit TIMEOUT 60)
    file(GLOB programs CONFIGURE_DEPENDS gpu/*.c)
    foreach(program ${programs})
      get_filename_component(name ${program} NAME_WE)
      add_executable(gpu_${name} ${program})
      target_link_libraries(gpu_${name} PRIVATE ${ARGN} kelp_flags)
      add_dependencies(gpu_${name} kelp-cuda)
      set_target_properties(gpu_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
      add_test(NAME gpu_${name} COMMAND gpu_${name})
      set_tests_properties(gpu_${name} PROPERTIES LABELS gpu TIMEOUT 600 SKIP_RETURN_CODE 77
        ENVIRONMENT "${KELP_TEST_ENVIRONMENT}")
    endforeach()
  endif()
endfunction()

# What is said where cuBLASLt or cuDNN is missing, and what cuDNN says of descriptors: with the device's own objects,
# without a GPU.
function(kelp_gpu_library_tests)
  if(TARGET kelp-cuda)
    foreach(name no_library cudnn_library)
      add_executable(gpu_${name} gpu/${name}.cu $<TARGET_OBJECTS:kelp-cuda>)
      target_include_directories(gpu_${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
      target_compile_definitions(gpu_${name} PRIVATE _GNU_SOURCE)
      target_link_libraries(gpu_${name} PRIVATE ${CMAKE_DL_LIBS})
      set_target_properties(gpu_${name} PROPERTIES CUDA_RUNTIME_LIBRARY Static
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    endforeach()
    foreach(library cublasLt cudnn)
      foreach(what none another)
        add_test(NAME gpu_${library}_${what} COMMAND gpu_no_library ${library} ${what})
        set_tests_properties(gpu_${library}_${what} PROPERTIES LABELS unit TIMEOUT 60)
      endforeach()
    endforeach()
    add_test(NAME gpu_cudnn_library COMMAND gpu_cudnn_library)
    set_tests_properties(gpu_cudnn_library PROPERTIES LABELS unit TIMEOUT 60 SKIP_RETURN_CODE 77)
  endif()
endfunction()
