#include "troika/server/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::server {

void Membership::begin_snapshot(const std::string& folder) {
  snapshot_.number = random_number();
  snapshot_.folder = folder;
  snapshot_.last_step = committed_;
  for (const auto& [name, node] : nodes_) {
    if (node.worker != 0) snapshot_.last_step = std::max(snapshot_.last_step, node.granted);
  }
  update_steps();
}

void Membership::end_snapshot() {
  snapshot_ = {};
  update_steps();
}

void Membership::update_snapshot() {
  snapshot_.is_drained =
      is_assigned_ && std::ranges::all_of(nodes_, [&](const auto& entry) {
        const auto& node = entry.second;
        return node.worker == 0 ||
               std::max(node.beat.finished, node.before_first) >= snapshot_.last_step;
      });
  if (!snapshot_.is_drained) return;
  // If workers left before, their unfinished steps are over.
  committed_ = std::max(committed_, snapshot_.last_step);
  find_lost_ranges();
}

void Membership::find_lost_ranges() {
  for (uint32_t range = 0; range < map_.ranges.size(); ++range) {
    if (map_.ranges[range].is_lost) snapshot_.problem = fmt::format("range {} was lost", range);
  }
}

void Membership::take_saved(const std::string& name, const Beat& beat) {
  if (snapshot_.number == 0 || beat.snapshot != snapshot_.number) return;
  if (!beat.failure.empty()) snapshot_.problem = name + ": " + beat.failure;
  for (const auto& saved : beat.saved) {
    if (saved.range < map_.ranges.size()) snapshot_.saved[saved.range] = saved;
  }
}

std::optional<SnapshotIndex> Membership::finished_snapshot() const {
  if (snapshot_.number == 0 || snapshot_.saved.size() < map_.ranges.size()) return std::nullopt;
  SnapshotIndex index{.step = snapshot_.last_step, .tables = map_.tables, .ranges = {}};
  for (const auto& [range, saved] : snapshot_.saved) index.ranges.push_back(saved);
  return index;
}

std::string Membership::snapshot_wait() const {
  if (!is_assigned_) return "servers that have not joined";
  for (const auto& [name, node] : nodes_) {
    const auto finished = std::max(node.beat.finished, node.before_first);
    if (node.worker != 0 && finished < snapshot_.last_step) {
      return fmt::format("worker {}, which has finished step {} of {}", name, finished,
                         snapshot_.last_step);
    }
  }
  for (uint32_t range = 0; range < map_.ranges.size(); ++range) {
    if (!snapshot_.saved.contains(range)) {
      return fmt::format("server {}, which has not written range {}", map_.master(range), range);
    }
  }
  return "nothing";
}

std::string Membership::status(net::Duration now) const {
  std::string text = to_text(map_) + fmt::format("committed {}\n", committed_);
  if (const auto missing = this->missing(); !missing.empty()) text += "waits: " + missing + "\n";
  int64_t farthest = committed_;
  for (const auto& [name, node] : nodes_) farthest = std::max(farthest, node.beat.finished);
  for (const auto& [name, node] : nodes_) {
    const double age = std::chrono::duration<double>(now - node.heard).count();
    const auto& beat = node.beat;
    if (node.worker == 0) {
      text +=
          fmt::format("server {}: heard {:.1f} s ago, {} keys, {} bytes, {} requests{}{}\n", name,
                      age, beat.keys, beat.bytes, beat.requests, beat.is_leaving ? ", leaving" : "",
                      beat.failure.empty() ? "" : ", failed: " + beat.failure);
      continue;
    }
    const auto finished = std::max(beat.finished, node.before_first);
    text += fmt::format(
        "worker {}: heard {:.1f} s ago, finished step {}, may begin {}, {} behind, sent {}, "
        "received {}\n",
        name, age, finished, node.granted, farthest - finished,
        human_bytes(static_cast<double>(beat.sent_bytes)),
        human_bytes(static_cast<double>(beat.received_bytes)));
  }
  return text;
}

}  // namespace troika::server
