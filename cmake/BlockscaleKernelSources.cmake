# Kernel sources travel inside the library, so that what the kernel pack lacks can be compiled
# where the library is used. Adds the generated file that holds them to `target`.
function(blockscale_embed_kernel_sources target)
  file(GLOB_RECURSE roots CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
    core/*.h device/*.h ops/*.cuh)
  list(FILTER roots EXCLUDE REGEX "^device/(emulator|golden)/|_test[_a-z]*\\.h$|testing\\.h$")
  set(script ${PROJECT_SOURCE_DIR}/cmake/embed_kernel_sources.cmake)
  set(output ${PROJECT_BINARY_DIR}/generated/embedded_sources.cpp)
  list(TRANSFORM roots PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE root_files)
  list(JOIN roots "|" roots)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D "ROOTS=${roots}"
      -D OUTPUT=${output} -D DEPFILE=${output}.d -P ${script}
    DEPENDS ${script} ${root_files} DEPFILE ${output}.d
    COMMENT "Embedding kernel sources" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
