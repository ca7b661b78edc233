// The keys of a rendezvous and who waits for them. For a single thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "troika/cluster/wire.h"

namespace troika::cluster {

class KeyStore {
 public:
  struct Waiting {
    int rank;
    uint64_t call;
  };

  // Null when the key is not set.
  const std::string* find(const std::string& key) const;
  // Returns those that waited for it, who wait no more.
  std::vector<Waiting> set(const std::string& key, std::string value);
  // The key's value plus the decimal `delta`, from 0 where it is not set; does not set it.
  std::variant<int64_t, Refusal> sum(const std::string& key, const std::string& delta) const;

  void wait(const std::string& key, Waiting who) { waiting_.emplace(key, who); }
  void forget(int rank);
  std::vector<Waiting> take_waiting();

 private:
  std::map<std::string, std::string> keys_;
  std::multimap<std::string, Waiting> waiting_;
};

}  // namespace troika::cluster
