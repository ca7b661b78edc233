// The place of a rank among replicas that train by themselves and share parameters on servers.
#pragma once

#include <string>
#include <vector>

#include "troika/comm/group.h"

namespace troika::parallel {

// A replica has one rank, or several that hold parts of the model. The ranks at one place of all
// replicas hold the same part, and have tables of their own on the servers.
struct ReplicaPlace {
  comm::Group replicas;     // the ranks at this place, in the order of replicas
  comm::Group all;          // the ranks of all replicas, those of a replica one after the other
  std::string prefix = {};  // of the names of this place's tables; empty if replicas have one rank
  std::vector<std::string> prefixes = {""};  // of all places

  // Each rank of the group is a replica.
  static ReplicaPlace of_each(const comm::Group& group) {
    return {.replicas = group, .all = group};
  }
};

}  // namespace troika::parallel
