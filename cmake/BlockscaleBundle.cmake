# Installs the shared libraries that `target` needs beside it, but for those of every Linux system,
# so that a wheel needs no system package. They find each other through the target's RPATH $ORIGIN
# and because the target names them all itself.
function(blockscale_bundle_libraries target destination component)
  install(CODE "
    file(GET_RUNTIME_DEPENDENCIES
      LIBRARIES \"$<TARGET_FILE:${target}>\"
      RESOLVED_DEPENDENCIES_VAR libraries
      UNRESOLVED_DEPENDENCIES_VAR unresolved
      PRE_EXCLUDE_REGEXES \"^ld-linux\" \"^lib(c|m|dl|rt|pthread|gcc_s|stdc\\\\+\\\\+)\\\\.so\" \"^libpython\")
    if(unresolved)
      message(FATAL_ERROR \"libraries not found: \${unresolved}\")
    endif()
    foreach(library IN LISTS libraries)
      file(INSTALL \"\${library}\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${destination}\"
        TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN)
    endforeach()" COMPONENT ${component})
endfunction()
