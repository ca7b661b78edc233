#include "troika/server/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"

namespace troika::server {

void Membership::recover(const std::string& name, const Beat& beat, net::Duration now) {
  if (!recovery_.began) recovery_.began = now;
  auto& node = nodes_[name];
  if (node.beat.instance == beat.instance && beat.number <= node.beat.number) return;
  node.beat = beat;
  node.heard = now;
  recovery_.committed = std::max(recovery_.committed, beat.committed);
  if (beat.map.empty()) return;
  auto map = parse_map(beat.map);
  if (map.generation == 0) return;
  if (map.tables != options_.tables || map.ranges.size() != options_.ranges) {
    throw Error("server", ErrorKind::usage,
                {.what = "the tables or ranges of " + name + " are not those of the scheduler",
                 .hint = "begin the scheduler again with the options that it had"});
  }
  if (recovery_.map.generation == 0) recovery_.began = now;
  if (map.generation > recovery_.map.generation) recovery_.map = std::move(map);
}

void Membership::finish_recovery() {
  const auto beats = std::exchange(nodes_, {});
  const auto recovery = std::exchange(recovery_, {});
  if (recovery.map.generation > 0) map_ = recovery.map;
  ++map_.generation;
  committed_ = recovery.committed;
  is_assigned_ = std::ranges::any_of(
      map_.ranges, [](const auto& range) { return !range.holders.empty() || range.is_lost; });
  for (const auto& [number, step] : map_.departed) last_worker_ = std::max(last_worker_, number);
  const auto workers = map_.workers;
  has_begun_ = !workers.empty() || !map_.departed.empty();
  for (const auto& [number, name] : workers) {
    last_worker_ = std::max(last_worker_, number);
    // Without a map it is a new process under this name.
    const auto found = beats.find(name);
    if (found != beats.end() && found->second.beat.generation > 0) {
      Node node = found->second;
      node.worker = number;
      node.granted = node.before_first = std::max(node.beat.finished, committed_);
      nodes_[name] = node;
      continue;
    }
    // A worker that was lost with the scheduler. All its later steps are left out everywhere.
    map_.workers.erase(number);
    map_.departed[number] = committed_;
  }
  for (const auto& [name, node] : beats) {
    if (nodes_.contains(name)) continue;
    if (node.beat.role == Role::worker) {
      join(name, node.beat, node.heard);
    } else {
      nodes_[name] = node;
    }
  }
  update_ranges();
  update_steps();
}

}  // namespace troika::server
