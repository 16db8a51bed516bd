# Writes OUT, a C file with the commit that SOURCE is at, when it has changed; run at every build. Without git or a
# repository it is HAYATE_COMMIT, which the build may be given, or nothing.
set(commit "${HAYATE_COMMIT}")
if(NOT commit AND GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty --abbrev=12 OUTPUT_VARIABLE commit
    ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
set(code "/* Made by cmake/commit.cmake. */\n#include \"cli/bench_machine.h\"\n\nconst char bench_commit[] = \"${commit}\";\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL code)
  file(WRITE ${OUT} "${code}")
endif()
