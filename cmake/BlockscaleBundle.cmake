# Makes a wheel need no system package: installs the shared libraries that a module and a program
# need into `destination`, but for those of every Linux system. `./dev wheel` leaves that to auditwheel.
option(BLOCKSCALE_BUNDLE "Install the shared libraries that the Python module needs beside it" ON)

# DT_RPATH (not DT_RUNPATH) is used because it also holds for what those libraries need themselves.
function(blockscale_bundle_libraries module program destination component)
  if(NOT BLOCKSCALE_BUNDLE)
    return()
  endif()
  target_link_options(${module} PRIVATE -Wl,--disable-new-dtags)
  target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
  set_target_properties(${module} PROPERTIES INSTALL_RPATH "$ORIGIN")
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/..")
  install(CODE "
    file(GET_RUNTIME_DEPENDENCIES
      LIBRARIES \"$<TARGET_FILE:${module}>\"
      EXECUTABLES \"$<TARGET_FILE:${program}>\"
      RESOLVED_DEPENDENCIES_VAR libraries
      UNRESOLVED_DEPENDENCIES_VAR unresolved
      PRE_EXCLUDE_REGEXES \"^ld-linux\" \"^lib(c|m|dl|rt|pthread|gcc_s|stdc[+][+])[.]so\" \"^libpython\")
    if(unresolved)
      message(FATAL_ERROR \"libraries not found: \${unresolved}\")
    endif()
    foreach(library IN LISTS libraries) # as the name that the loader asks for: wheels have no links
      file(REAL_PATH \"\${library}\" file)
      cmake_path(GET library FILENAME name)
      file(COPY_FILE \"\${file}\"
        \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${destination}/\${name}\")
    endforeach()" COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()
