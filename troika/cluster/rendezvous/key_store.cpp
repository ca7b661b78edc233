#include "troika/cluster/rendezvous/key_store.h"

#include <fmt/format.h>

#include <utility>

#include "troika/base/text.h"

namespace troika::cluster {

const std::string* KeyStore::find(const std::string& key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : &found->second;
}

std::vector<KeyStore::Waiting> KeyStore::set(const std::string& key, std::string value) {
  keys_[key] = std::move(value);
  std::vector<Waiting> released;
  const auto [begin, end] = waiting_.equal_range(key);
  for (auto it = begin; it != end; ++it) released.push_back(it->second);
  waiting_.erase(begin, end);
  return released;
}

std::variant<int64_t, Refusal> KeyStore::sum(const std::string& key,
                                             const std::string& delta) const {
  const std::string* value = find(key);
  const auto old = value ? parse_int(*value) : int64_t{0};
  const auto more = parse_int(delta);
  int64_t total = 0;
  if (old && more && !__builtin_add_overflow(*old, *more, &total)) return total;
  return Refusal{ErrorKind::usage,
                 {.what = fmt::format("cannot add to key \"{}\"", key),
                  .got = old ? "a sum beyond 64 bits" : "a value that is no integer",
                  .expected = "a 64-bit integer"}};
}

void KeyStore::forget(int rank) {
  std::erase_if(waiting_, [&](const auto& entry) { return entry.second.rank == rank; });
}

std::vector<KeyStore::Waiting> KeyStore::take_waiting() {
  std::vector<Waiting> released;
  for (const auto& [key, who] : std::exchange(waiting_, {})) released.push_back(who);
  return released;
}

}  // namespace troika::cluster
