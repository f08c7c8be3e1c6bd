# Writes OUT with KVL_CORE_ID and KVL_CUDA_ID, hashes of FILES and CUDA_FILES: the code that the bytes of a
# prefill depend on, and of one on a GPU as well.
function(id_of files out)
  set(all "")
  foreach(file IN LISTS files)
    get_filename_component(name ${file} NAME)
    file(MD5 ${file} hash)
    list(APPEND all "${name} ${hash}")
  endforeach()
  list(SORT all)
  string(MD5 id "${all}")
  string(SUBSTRING ${id} 0 16 id)
  set(${out} ${id} PARENT_SCOPE)
endfunction()
id_of("${FILES}" core)
id_of("${CUDA_FILES}" cuda)
file(WRITE ${OUT} "/* Generated from the sources of core. */\n#define KVL_CORE_ID \"${core}\"\n"
     "#define KVL_CUDA_ID \"${cuda}\"\n")
