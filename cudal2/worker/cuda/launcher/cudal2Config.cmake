# find_package(cudal2) where CMAKE_PREFIX_PATH names this folder gives the target cudal2::cudal2.
get_filename_component(_cudal2_folder "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET cudal2::cudal2)
  add_library(cudal2::cudal2 SHARED IMPORTED)
  set_target_properties(cudal2::cudal2 PROPERTIES
    IMPORTED_LOCATION "${_cudal2_folder}/lib/libcudal2.so"
    IMPORTED_SONAME "libcudal2.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_cudal2_folder}/include"
    # The driver's functions are found at run time: the machine that links need not have a driver.
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined")
endif()
unset(_cudal2_folder)
