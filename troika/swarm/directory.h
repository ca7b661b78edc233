// Where peers publish records about themselves, and find those of others.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "troika/swarm/record.h"

namespace troika::swarm {

// Functions never block, and run under Endpoint's rules for callbacks.
class Directory {
 public:
  virtual ~Directory() = default;

  // Publishes a record of this peer, which replaces the one with the same kind and sub-key. An
  // empty body withdraws that record. The record is readable here at once, elsewhere later.
  virtual void publish(const std::string& kind, const std::string& sub_key, int64_t epoch,
                       WallTime lifetime, const std::string& body) = 0;
  // Returns the records of a kind that are valid now, of all peers, by peer and sub-key.
  virtual std::vector<Record> find(const std::string& kind) const = 0;
  // Calls `changed` for each record that is new, replaced or withdrawn from now on, also for this
  // peer's own. Not for those that expire. Replaces the previous function.
  virtual void watch(std::function<void(const Record&)> changed) = 0;
  virtual WallTime now() const = 0;
};

}  // namespace troika::swarm
