# Writes OUT: hashes of the sources that the answers of a cell depend on, by what they are sources of.
#
#   ENGINE_FILES  whatever every cell depends on           CUDA_FILES  those of cells on a GPU as well
#   ANALYSIS_FILES  those of what `kvlab analyze` counts
#   METHODS       folder: of a method its file, sources beside it (x.op.c), the headers of the folder that they include,
#                 and of parts (parts/x.h) the source, with what that includes
#   TASKS         folder: of a task its file and all files of the folder that are no task; those in files/ are
#                 for the tasks in files/ alone
#
# A file counts by its name and its contents, not by where it lies.  OUT is a header with KVL_CODE_ENGINE,
# KVL_CODE_CUDA, KVL_CODE_ANALYSIS and the lists KVL_CODE_POLICIES(X) and KVL_CODE_TASKS(X) of X(file, hash).

cmake_minimum_required(VERSION 3.25)

function(hash_of files out)
  set(all "")
  list(REMOVE_ITEM files "")
  foreach(file IN LISTS files)
    get_filename_component(name ${file} NAME)
    file(MD5 ${file} hash)
    list(APPEND all "${name} ${hash}")
  endforeach()
  list(SORT all)
  string(MD5 hash "${all}")
  string(SUBSTRING ${hash} 0 16 hash)
  set(${out} ${hash} PARENT_SCOPE)
endfunction()

# The headers beside a file or in a folder there that it includes, those that they include, and the source of each (x.c
# beside x.h), with the headers of that.
function(included_by file out)
  set(found "")
  set(left ${file})
  while(left)
    list(POP_FRONT left next)
    get_filename_component(folder ${next} DIRECTORY)
    file(STRINGS ${next} lines REGEX "^[ \t]*#[ \t]*include[ \t]*\"")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^[^\"]*\"([^\"]*)\".*" "\\1" name "${line}")
      string(REGEX REPLACE "\\.h$" ".c" source "${name}")
      foreach(path IN ITEMS ${folder}/${name} ${folder}/${source})
        if(EXISTS ${path} AND NOT path IN_LIST found AND NOT path STREQUAL file)
          list(APPEND found ${path})
          list(APPEND left ${path})
        endif()
      endforeach()
    endforeach()
  endwhile()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# Files of `folder` that export an object by `macro`, and all others.
function(split_folder folder macro out_exporting out_others)
  file(GLOB_RECURSE files ${folder}/*.c ${folder}/*.h ${folder}/*.def)
  set(exporting "")
  set(others "")
  foreach(file IN LISTS files)
    file(STRINGS ${file} exported REGEX "^${macro}_EXPORT\\(")
    get_filename_component(stem ${file} NAME_WE)
    if(exported AND NOT stem MATCHES "^_")
      list(APPEND exporting ${file})
    elseif(NOT stem MATCHES "^_")
      list(APPEND others ${file})
    endif()
  endforeach()
  set(${out_exporting} ${exporting} PARENT_SCOPE)
  set(${out_others} ${others} PARENT_SCOPE)
endfunction()

set(text "/* Generated from the sources. */\n")
hash_of("${ENGINE_FILES}" engine)
hash_of("${CUDA_FILES}" cuda)
hash_of("${ANALYSIS_FILES}" analysis)
string(APPEND text "#define KVL_CODE_ENGINE 0x${engine}\n#define KVL_CODE_CUDA 0x${cuda}\n"
       "#define KVL_CODE_ANALYSIS 0x${analysis}\n")

# A source of a method beside its file (methods/x.op.c) is the method's.
split_folder(${METHODS} KVL_POLICY methods others)
string(APPEND text "#define KVL_CODE_POLICIES(X)")
foreach(file IN LISTS methods)
  get_filename_component(stem ${file} NAME_WE)
  set(own ${others})
  list(FILTER own INCLUDE REGEX "/${stem}\\.[^/]*\\.c$")
  list(PREPEND own ${file})
  set(all ${own})
  foreach(source IN LISTS own)
    included_by(${source} found)
    list(APPEND all ${found})
  endforeach()
  list(REMOVE_DUPLICATES all)
  hash_of("${all}" hash)
  string(APPEND text " \\\n    X(${stem}, 0x${hash})")
endforeach()

split_folder(${TASKS} KVL_TASK tasks others)
string(APPEND text "\n#define KVL_CODE_TASKS(X)")
foreach(file IN LISTS tasks)
  get_filename_component(stem ${file} NAME_WE)
  set(more ${others})
  if(NOT file MATCHES "/files/[^/]*$")
    list(FILTER more EXCLUDE REGEX "/files/[^/]*$")
  endif()
  hash_of("${file};${more}" hash)
  string(APPEND text " \\\n    X(${stem}, 0x${hash})")
endforeach()

file(WRITE ${OUT} "${text}\n")
