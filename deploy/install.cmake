# What `cmake --install` puts where, below its prefix, and what cpack packs. The programs find one another by where
# they lie, so that the prefix can be chosen at the installation, and moved later.
#
#   bin/                    kelp, kelp-coordinator, kelp-ps, kelp-worker
#   include/kelp/           model.h for models of one's own; worker.h for programs that are workers
#   lib/                    libkelp-worker.so, the worker as a library; kelp/kelp-faultdisk.so; pkgconfig/;
#                           kelp/libkelp-cuda.so where nvcc was found
#   lib/python3.N/dist-packages/kelp/  the package for Python, where its headers were found
#   share/kelp/examples/    jobs to start from, a model and a worker of one's own
#   share/doc/kelp/         README and docs/
#   share/kelp/monitoring/  alerts and a board
#   lib/systemd/, lib/sysusers.d/  a unit for kelp node, and its user
#   share/kelp/slurm/       a batch script
#   share/man/              a page for each program and verb, and one for job files
#   share/{bash-completion,zsh,fish}/
#
# Components, each a Debian package: kelp; libkelp-worker1, with which programs run that are workers themselves;
# kelp-dev, with which they are built; and python3-kelp, for scripts in Python.

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME kelp)
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

install(TARGETS kelp kelp-coordinator kelp-ps kelp-worker RUNTIME DESTINATION bin)
install(TARGETS kelp-faultdisk LIBRARY DESTINATION lib/kelp)
if(TARGET kelp-cuda)
  install(TARGETS kelp-cuda LIBRARY DESTINATION lib/kelp)
endif()

# ---- jobs, documentation, pages, completions ----
# Not what was built or trained there.
install(DIRECTORY examples DESTINATION share/kelp PATTERN build EXCLUDE PATTERN runs EXCLUDE PATTERN worker/mlp EXCLUDE
  PATTERN rows.bin EXCLUDE)
install(FILES README.md CHANGELOG.md LICENSE DESTINATION share/doc/kelp)
install(DIRECTORY docs DESTINATION share/doc/kelp)
install(DIRECTORY deploy/monitoring DESTINATION share/kelp)
install(FILES deploy/systemd/kelp-node@.service DESTINATION lib/systemd/system)
install(FILES deploy/systemd/kelp.conf DESTINATION lib/sysusers.d)
install(DIRECTORY deploy/slurm DESTINATION share/kelp USE_SOURCE_PERMISSIONS)
set(pages ${PROJECT_BINARY_DIR}/cli/pages)
install(DIRECTORY ${pages}/man1 ${pages}/man5 DESTINATION share/man)
install(FILES ${pages}/_kelp DESTINATION share/zsh/site-functions)
# bash and fish load a completion by the name of the program.
foreach(program kelp kelp-coordinator kelp-ps kelp-worker)
  install(FILES ${pages}/kelp DESTINATION share/bash-completion/completions RENAME ${program})
  install(FILES ${pages}/kelp.fish DESTINATION share/fish/vendor_completions.d RENAME ${program}.fish)
endforeach()

# ---- models of one's own ----
set(pkgconfig ${PROJECT_BINARY_DIR}/pkgconfig)
configure_file(deploy/kelp.pc.in ${pkgconfig}/kelp.pc @ONLY)
install(FILES include/kelp/model.h DESTINATION include/kelp)
install(FILES ${pkgconfig}/kelp.pc DESTINATION lib/pkgconfig)

# ---- the worker as a library ----
configure_file(deploy/kelp-worker.pc.in ${pkgconfig}/kelp-worker.pc @ONLY)
install(TARGETS kelp-worker-shared
  LIBRARY DESTINATION lib COMPONENT libkelp-worker1 NAMELINK_COMPONENT kelp-dev)
install(FILES include/kelp/worker.h DESTINATION include/kelp COMPONENT kelp-dev)
install(FILES ${pkgconfig}/kelp-worker.pc DESTINATION lib/pkgconfig COMPONENT kelp-dev)

# ---- Python ----
if(TARGET kelp-python)
  install(TARGETS kelp-python LIBRARY DESTINATION ${KELP_PYTHON_FOLDER}/kelp COMPONENT python3-kelp)
  install(DIRECTORY python/kelp DESTINATION ${KELP_PYTHON_FOLDER} COMPONENT python3-kelp
    FILES_MATCHING PATTERN *.py PATTERN *.pyi PATTERN py.typed PATTERN __pycache__ EXCLUDE)
  install(FILES ${PROJECT_BINARY_DIR}/python/METADATA COMPONENT python3-kelp
    DESTINATION ${KELP_PYTHON_FOLDER}/kelp-${PROJECT_VERSION}.dist-info)
endif()

# ---- Debian packages: cpack -G DEB in the build folder ----
set(KELP_MAINTAINER "Kelp developers <kelp@example.org>" CACHE STRING "Maintainer of the packages: NAME <MAIL>")
set(CPACK_PACKAGE_NAME kelp)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "${KELP_MAINTAINER}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL kelp libkelp-worker1 kelp-dev)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS ${CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS})
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/deploy/debian.cmake)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)
set(CPACK_DEBIAN_KELP_PACKAGE_NAME kelp)
set(CPACK_DEBIAN_KELP_PACKAGE_SECTION science)
set(CPACK_DEBIAN_KELP_PACKAGE_SHLIBDEPS ON)
# `kelp train` starts an etcd of its own; chaos cuts networks by ip.
set(CPACK_DEBIAN_KELP_PACKAGE_RECOMMENDS etcd-server)
set(CPACK_DEBIAN_KELP_PACKAGE_SUGGESTS "iproute2, bash-completion, kelp-dev")
set(CPACK_COMPONENT_KELP_DESCRIPTION
"fault-tolerant, elastic training on clusters of CPUs
Kelp trains models on a cluster whose processes may join, leave or fail at
any time, and the result has the same bits whatever happens. It is a
parameter server for time series, tables, recommendation and images.
.
The command kelp trains on one machine with etcd, coordinators, shards and
workers as processes of their own, and looks after runs and checkpoints.")
set(CPACK_DEBIAN_KELP-DEV_PACKAGE_NAME kelp-dev)
set(CPACK_DEBIAN_KELP-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_KELP-DEV_PACKAGE_DEPENDS "libkelp-worker1 (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
set(CPACK_COMPONENT_KELP-DEV_DESCRIPTION
"worker of Kelp as a library, to build with
Kelp trains models on a cluster whose processes may join, leave or fail at
any time. With this library a program takes part in a job and brings
gradients of its own. Models as shared libraries need the package kelp alone.")
set(CPACK_DEBIAN_LIBKELP-WORKER1_PACKAGE_NAME libkelp-worker1)
set(CPACK_DEBIAN_LIBKELP-WORKER1_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBKELP-WORKER1_PACKAGE_SHLIBDEPS ON)
file(WRITE ${PROJECT_BINARY_DIR}/debian/shlibs "libkelp-worker 1 libkelp-worker1\n")
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBKELP-WORKER1_PACKAGE_CONTROL_EXTRA
  "${PROJECT_BINARY_DIR}/debian/shlibs;${PROJECT_BINARY_DIR}/debian/triggers")
set(CPACK_COMPONENT_LIBKELP-WORKER1_DESCRIPTION
"worker of Kelp as a library
Kelp trains models on a cluster whose processes may join, leave or fail at
any time. Programs that bring gradients of their own run with this library.")
if(TARGET kelp-python)
  list(APPEND CPACK_COMPONENTS_ALL python3-kelp)
  set(CPACK_DEBIAN_PYTHON3-KELP_PACKAGE_NAME python3-kelp)
  set(CPACK_DEBIAN_PYTHON3-KELP_PACKAGE_SECTION python)
  set(CPACK_DEBIAN_PYTHON3-KELP_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)
  set(CPACK_DEBIAN_PYTHON3-KELP_PACKAGE_DEPENDS
    "python3 (>= 3.11), python3-numpy, libkelp-worker1 (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
  set(CPACK_DEBIAN_PYTHON3-KELP_PACKAGE_RECOMMENDS "kelp, python3-torch")
  set(CPACK_DEBIAN_PYTHON3-KELP_PACKAGE_CONTROL_EXTRA
    "${PROJECT_SOURCE_DIR}/deploy/debian/python3-kelp/postinst;${PROJECT_SOURCE_DIR}/deploy/debian/python3-kelp/prerm")
  set(CPACK_COMPONENT_PYTHON3-KELP_DESCRIPTION
"training with PyTorch or numpy on Kelp
Kelp trains models on a cluster whose processes may join, leave or fail at
any time, and the result has the same bits whatever happens. With this package
scripts in Python take part: kelp.torch trains a module of PyTorch, and
kelp alone needs numpy. The command that starts them is in the package kelp.")
endif()
include(CPack)
