# The licence texts of what a wheel carries of other people's, as shared libraries or compiled in.
# They are taken from where the machine keeps them: Debian's share/doc/PACKAGE/copyright, else
# share/licenses or share/doc by the project's name. One that is not found is a warning: only who
# gives the wheel to others needs it.

# NAME PACKAGE ALIAS: the file's name, Debian's package, the project's name elsewhere.
set(blockscale_bundled_projects
  "oneTBB libtbb-dev tbb"
  "Highway libhwy-dev highway"
  "spdlog libspdlog-dev spdlog"
  "fmt libfmt-dev fmt"
  "nlohmann-json nlohmann-json3-dev nlohmann-json"
  "xxHash libxxhash-dev xxhash"
  "RE2 libre2-dev re2"
  "CLI11 libcli11-dev cli11")
if(RE2_LIBRARIES MATCHES "absl_") # what RE2 needs since the middle of 2023
  list(APPEND blockscale_bundled_projects "Abseil libabsl-dev abseil-cpp")
endif()

function(blockscale_find_license package alias result)
  unset(text) # the caller's, of the project before: find_file keeps a variable that has a value
  find_file(text NO_CACHE
    NAMES copyright LICENSE LICENSE.txt LICENSE.md LICENSE.MIT LICENSE.rst COPYING
    HINTS ${CMAKE_PREFIX_PATH} PATHS /usr /usr/local
    PATH_SUFFIXES share/doc/${package} share/licenses/${alias} share/doc/${alias}
    NO_DEFAULT_PATH)
  set(${result} ${text} PARENT_SCOPE)
endfunction()

# Leaves nanobind's licence, from its wheel, and robin_map's, which begins a header of it, in
# `folder`.
function(blockscale_write_nanobind_licenses folder)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "if True:
      import importlib.metadata
      files = importlib.metadata.files('nanobind') or []
      print(next((f.locate() for f in files if f.name.startswith('LICENSE')), ''))"
    OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE license ERROR_QUIET)
  if(license)
    configure_file(${license} ${folder}/nanobind.txt COPYONLY)
  endif()
  find_file(header tsl/robin_map.h NO_CACHE NO_DEFAULT_PATH HINTS ${nanobind_ROOT}/.. /usr
    PATH_SUFFIXES ext/robin_map/include include)
  if(header)
    file(READ ${header} text)
    string(FIND "${text}" "*/" end)
    string(SUBSTRING "${text}" 0 ${end} text)
    string(REGEX REPLACE "(^|\n)(/\\*\\*?| \\*) ?" "\\1" text "${text}")
    file(WRITE ${folder}/robin_map.txt "${text}")
  endif()
endfunction()

# Installs them as `destination`/NAME.txt, with the text that several refer to.
function(blockscale_install_licenses destination component)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/licenses)
  file(REMOVE_RECURSE ${folder})
  set(names nanobind robin_map)
  blockscale_write_nanobind_licenses(${folder})
  foreach(project IN LISTS blockscale_bundled_projects)
    separate_arguments(project)
    list(GET project 0 name)
    list(GET project 1 package)
    list(GET project 2 alias)
    list(APPEND names ${name})
    blockscale_find_license(${package} ${alias} text)
    if(text)
      configure_file(${text} ${folder}/${name}.txt COPYONLY)
    endif()
  endforeach()
  foreach(name IN LISTS names)
    if(NOT EXISTS ${folder}/${name}.txt)
      message(WARNING "No licence text of ${name} found: a wheel for others must carry it")
    endif()
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/LICENSE ${folder}/Apache-2.0.txt COPYONLY)
  install(DIRECTORY ${folder}/ DESTINATION ${destination} COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()
