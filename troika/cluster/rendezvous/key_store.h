// The keys of a rendezvous and the calls that wait for them. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "troika/cluster/rendezvous/wire.h"

namespace troika::cluster {

class KeyStore {
 public:
  struct Waiting {
    int rank;
    uint64_t call;
  };

  // Returns null if the key is not set.
  const std::string* find(const std::string& key) const;
  // Sets the key. Returns and removes the calls that waited for it.
  std::vector<Waiting> set(const std::string& key, std::string value);
  // Returns the key's value (0 if not set) plus the decimal `delta`. Does not set the key.
  std::variant<int64_t, Refusal> sum(const std::string& key, const std::string& delta) const;

  void wait(const std::string& key, Waiting who) { waiting_.emplace(key, who); }
  void forget(int rank);
  std::vector<Waiting> take_waiting();

 private:
  std::map<std::string, std::string> keys_;
  std::multimap<std::string, Waiting> waiting_;
};

}  // namespace troika::cluster
