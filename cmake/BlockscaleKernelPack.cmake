# The kernel pack: compiled by the command line, which finds NVRTC by itself (BLOCKSCALE_NVRTC, the
# toolkit's, or a PyPI package's). No GPU is needed. Installed where it exists.
option(BLOCKSCALE_KERNEL_PACK "Compile the kernel pack with everything else (needs NVRTC)" OFF)

# Adds the target kernel_pack, which leaves blockscale-*.pack in the build folder; what has not
# changed since is kept.
function(blockscale_add_kernel_pack)
  if(BLOCKSCALE_KERNEL_PACK)
    set(all ALL)
  endif()
  add_custom_target(kernel_pack ${all}
    COMMAND blockscale_cli kernels build --quiet --output ${PROJECT_BINARY_DIR}
    COMMENT "Compiling the kernel pack" VERBATIM USES_TERMINAL)
endfunction()

# Further arguments are options of install().
function(blockscale_install_kernel_pack destination)
  install(CODE "
    file(GLOB packs \"${PROJECT_BINARY_DIR}/blockscale-*.pack\")
    if(packs)
      file(INSTALL \${packs} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${destination}\")
    endif()" ${ARGN})
endfunction()
