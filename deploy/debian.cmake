# What Debian asks of a package beyond `cmake --install`: run by cpack on the files before they are packed.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()

# Time stamps that do not tell when the package was made, where SOURCE_DATE_EPOCH says so.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(package ${CPACK_COMPONENTS_ALL})
  set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${package}/usr)
  set(doc ${root}/share/doc/${package})
  file(MAKE_DIRECTORY ${doc})
  file(WRITE ${doc}/copyright
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: kelp

Files: *
Copyright: 2026 the Kelp developers
License: Apache-2.0
 On Debian systems, the full text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
")
  file(WRITE ${doc}/changelog.Debian
"kelp (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium

  * Made by cpack; CHANGELOG.md lists the changes.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  file(GLOB plain ${doc}/changelog.Debian ${root}/share/man/man*/*.[15])
  execute_process(COMMAND gzip -9nf ${plain} COMMAND_ERROR_IS_FATAL ANY)
endforeach()

# The licence is there already; upstream's list of changes is called changelog.
set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/kelp/usr)
file(REMOVE ${root}/share/doc/kelp/LICENSE)
file(RENAME ${root}/share/doc/kelp/CHANGELOG.md ${root}/share/doc/kelp/changelog)
execute_process(COMMAND gzip -9nf ${root}/share/doc/kelp/changelog COMMAND_ERROR_IS_FATAL ANY)

# Debian's zsh does not look into site-functions.
file(MAKE_DIRECTORY ${root}/share/zsh/vendor-completions)
file(RENAME ${root}/share/zsh/site-functions/_kelp ${root}/share/zsh/vendor-completions/_kelp)
file(REMOVE_RECURSE ${root}/share/zsh/site-functions)

# Debian has one folder for all versions of Python, and its libraries where the loader looks.
set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/python3-kelp/usr)
if(EXISTS ${root})
  file(GLOB packages ${root}/lib/python3.*/*-packages)
  get_filename_component(version ${packages} DIRECTORY)
  file(MAKE_DIRECTORY ${root}/lib/python3)
  file(RENAME ${packages} ${root}/lib/python3/dist-packages)
  file(REMOVE_RECURSE ${version})
  file(RPATH_REMOVE FILE ${root}/lib/python3/dist-packages/kelp/_kelp.abi3.so)
endif()
