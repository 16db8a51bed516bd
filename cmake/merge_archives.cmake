# Makes one archive of several, in which only the public names are global, so that an embedder's own names cannot clash:
# cmake -DOUT=lib.a -DAR=ar -DLINKER=ld -DOBJCOPY=objcopy "-DPARTS=a.a|b.a" -P merge_archives.cmake
string(REPLACE "|" ";" parts "${PARTS}")
file(REMOVE ${OUT} ${OUT}.o)
execute_process(COMMAND ${LINKER} -r --whole-archive ${parts} -o ${OUT}.o COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${OBJCOPY} --wildcard --keep-global-symbol=hy_* ${OUT}.o COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${AR} rcs ${OUT} ${OUT}.o COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${OUT}.o)
