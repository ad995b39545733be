# SPDX-License-Identifier: Apache-2.0
# Run by cpack on the installed files of each component before they are packed: makes of them what Debian's policy asks for.
#
# Adds the files of /usr/share/doc, compresses the manual page, takes symbols for debuggers out of archives, and, with
# SOURCE_DATE_EPOCH, gives all files one time.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)   # heeds SOURCE_DATE_EPOCH

# The copyright files of the packages that `files` belong to.
function(fsdp_licences_of out files)
  set(texts "")
  foreach(file ${files})
    file(REAL_PATH ${file} real)
    execute_process(COMMAND dpkg-query -S ${real} OUTPUT_VARIABLE owner ERROR_QUIET)
    string(REGEX MATCH "^[a-z0-9.+-]+" name "${owner}")
    if(NOT name OR NOT EXISTS /usr/share/doc/${name}/copyright)
      message(FATAL_ERROR "${file} is part of the package, and no Debian package with a copyright file owns it")
    endif()
    execute_process(COMMAND dpkg-query -W -f=\${source:Package}\ \${source:Version}\\n ${name} OUTPUT_VARIABLE version)
    string(REGEX REPLACE "\n.*" "" version "${version}")
    file(READ /usr/share/doc/${name}/copyright text)
    string(APPEND texts "\n----\nContains parts of Debian's source package ${version}, whose copyright file says:\n\n${text}")
  endforeach()
  set(${out} "${texts}" PARENT_SCOPE)
endfunction()

foreach(component tool dev)
  set(stage ${CPACK_TEMPORARY_DIRECTORY}/${component})
  if(NOT IS_DIRECTORY ${stage})
    continue()
  endif()
  string(TOUPPER ${component} upper)
  set(package ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  set(doc ${stage}/usr/share/doc/${package})
  fsdp_licences_of(licences "${CPACK_FSDP_PARTS_OF_${upper}}")
  file(WRITE ${doc}/copyright "fsdp, by the fsdp authors, under the Apache License, Version 2.0.
On Debian systems its text is in /usr/share/common-licenses/Apache-2.0.
${licences}")
  if(NOT EXISTS /usr/share/common-licenses/Apache-2.0)
    file(COPY ${CPACK_FSDP_LICENCE} DESTINATION ${doc})
  endif()
  file(WRITE ${doc}/changelog "${CPACK_PACKAGE_NAME} (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}; docs/CHANGELOG.md in the source says what is new.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  file(GLOB pages ${stage}/usr/share/man/man*/*)
  execute_process(COMMAND gzip -9nf ${doc}/changelog ${pages} COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB_RECURSE archives ${stage}/usr/lib/*.a)
  foreach(archive ${archives})
    execute_process(COMMAND ${CPACK_FSDP_STRIP} --strip-debug --remove-section=.comment --remove-section=.note
      --enable-deterministic-archives ${archive} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  file(GLOB_RECURSE files LIST_DIRECTORIES true ${stage}/usr/*)
  foreach(file ${files} ${stage}/usr)
    if(IS_DIRECTORY ${file})
      file(CHMOD ${file} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
    elseif(NOT file MATCHES "/usr/bin/")
      file(CHMOD ${file} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
    endif()
  endforeach()
  if(DEFINED ENV{SOURCE_DATE_EPOCH})
    execute_process(COMMAND find ${stage} -exec touch -h -d @$ENV{SOURCE_DATE_EPOCH} {} + COMMAND_ERROR_IS_FATAL ANY)
  endif()
endforeach()
