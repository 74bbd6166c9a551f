#compdef kelp kelp-coordinator kelp-ps kelp-worker
# Written by the build of Kelp.
