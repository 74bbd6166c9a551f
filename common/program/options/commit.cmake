# Writes OUT, a C file that holds the commit of SOURCE_DIR. Runs at each build; the file keeps its time unless the
# commit changed. Without git, or outside of a clone of Kelp's own, the commit is unknown.
set(commit "unknown commit")
find_program(git git)
if(git)
  # The clone may belong to another user; the index stays as it is.
  set(run ${git} -c safe.directory=${SOURCE_DIR} --no-optional-locks -C ${SOURCE_DIR})
  execute_process(COMMAND ${run} rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH ${SOURCE_DIR} source)
  if(top STREQUAL source)
    execute_process(COMMAND ${run} describe --always --dirty --abbrev=7 --exclude=*
      RESULT_VARIABLE result OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(result EQUAL 0)
      set(commit "${found}")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
#include "common/program/options/version.h"

const char kelp__commit[] = "@commit@";
]])
