# What `cmake --install` puts where, below its prefix, and what cpack packs. The programs find one another by where
# they lie, so that the prefix can be chosen at the installation, and moved later.
#
#   bin/                    kelp, kelp-coordinator, kelp-ps, kelp-worker
#   include/kelp/           model.h for models of one's own; worker.h and the headers that it needs
#   lib/                    libkelp-worker.a, the worker as a library; kelp/kelp-faultdisk.so; pkgconfig/;
#                           kelp/libkelp-cuda.so where nvcc was found
#   share/kelp/examples/    jobs to start from, a model of one's own
#   share/doc/kelp/         README and docs/
#   share/kelp/monitoring/  alerts and a board
#   lib/systemd/, lib/sysusers.d/  a unit for kelp node, and its user
#   share/kelp/slurm/       a batch script
#   share/man/              a page for each program and verb, and one for job files
#   share/{bash-completion,zsh,fish}/
#
# Two components, each a Debian package: kelp, and kelp-dev for programs that use the worker as a library.

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME kelp)
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

install(TARGETS kelp kelp-coordinator kelp-ps kelp-worker RUNTIME DESTINATION bin)
install(TARGETS kelp-faultdisk LIBRARY DESTINATION lib/kelp)
if(TARGET kelp-cuda)
  install(TARGETS kelp-cuda LIBRARY DESTINATION lib/kelp)
endif()

# ---- jobs, documentation, pages, completions ----
install(DIRECTORY examples DESTINATION share/kelp PATTERN build EXCLUDE)
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
# One archive of all objects that it may need; headers keep their paths, below include/kelp.
set(objects "")
foreach(library kelp_worker kelp_worker_core kelp_kernels kelp_loops_avx2 kelp_loops_avx512 kelp_proto
        kelp_proto_generated kelp_common kelp_base)
  if(TARGET ${library})
    list(APPEND objects $<TARGET_OBJECTS:${library}>)
  endif()
endforeach()
add_library(kelp_worker_archive STATIC ${objects})
set_target_properties(kelp_worker_archive PROPERTIES OUTPUT_NAME kelp-worker LINKER_LANGUAGE C
  ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
configure_file(deploy/kelp-worker.pc.in ${pkgconfig}/kelp-worker.pc @ONLY)
set(development COMPONENT kelp-dev)
install(TARGETS kelp_worker_archive ARCHIVE DESTINATION lib ${development})
install(FILES ${pkgconfig}/kelp-worker.pc DESTINATION lib/pkgconfig ${development})
install(FILES include/kelp/worker.h DESTINATION include/kelp ${development})
foreach(header base/log.h base/sha256.h base/status.h base/value.h etcd/etcd.h job/job.h job/path_map.h program/daemon.h
        program/options.h rpc/rpc.h tls/certificate.h tls/credentials.h tls/spiffe.h training/control.h
        training/decision_share.h training/metrics.h training/plan.h)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES common/${header} DESTINATION include/kelp/common/${folder} ${development})
endforeach()

# ---- Debian packages: cpack -G DEB in the build folder ----
set(KELP_MAINTAINER "Kelp developers <kelp@example.org>" CACHE STRING "Maintainer of the packages: NAME <MAIL>")
set(CPACK_PACKAGE_NAME kelp)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "${KELP_MAINTAINER}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL kelp kelp-dev)
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
string(CONCAT depends "kelp (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}), libgrpc-dev, libprotobuf-c-dev, "
  "libcurl4-openssl-dev, libssl-dev, libyaml-dev, libcjson-dev, libxxhash-dev, zlib1g-dev, "
  "libopenblas-pthread-dev, libdnnl-dev")
set(CPACK_DEBIAN_KELP-DEV_PACKAGE_DEPENDS ${depends})
set(CPACK_COMPONENT_KELP-DEV_DESCRIPTION
"worker of Kelp as a library
Kelp trains models on a cluster whose processes may join, leave or fail at
any time. With this library a program takes part in a job and brings
gradients of its own. Models as shared libraries need the package kelp alone.")
include(CPack)
