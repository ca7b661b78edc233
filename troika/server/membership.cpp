#include "troika/server/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/checksum.h"
#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::server {

namespace {

// A scheduler that takes over begins a new run if it has heard of no map for so many times the
// limit: the scheduler before it had not made one.
constexpr int kFreshRun = 10;

void require(bool holds, const std::string& what, const std::string& got,
             const std::string& expected) {
  if (!holds) {
    throw Error("server", ErrorKind::usage, {.what = what, .got = got, .expected = expected});
  }
}

void check(const SchedulerOptions& options) {
  require(options.replicas >= 0, "the number of replicas", std::to_string(options.replicas),
          ">= 0");
  require(options.first_servers > options.replicas, "servers to begin with",
          std::to_string(options.first_servers),
          fmt::format("at least {}, one more than replicas", options.replicas + 1));
  require(options.first_workers >= 1, "workers to begin with",
          std::to_string(options.first_workers), ">= 1");
  if (!options.takes_tables) return check_tables(options.tables, options.ranges);
  require(options.tables.empty() && options.snapshot.empty() && !options.takes_over,
          "a scheduler that takes its tables from a worker",
          "tables, a snapshot or a lost scheduler of its own", "none of them");
}

}  // namespace

Membership::Membership(SchedulerOptions options, int64_t first_committed)
    : options_(std::move(options)),
      consistency_(options_.consistency),
      committed_(first_committed) {
  check(options_);
  map_.origin = options_.snapshot;
  recovery_.is_under_way = options_.takes_over;
  map_.tables = options_.tables;
  if (!options_.takes_tables) map_.ranges.resize(options_.ranges);
}

bool Membership::take(const std::string& name, const Beat& beat, net::Duration now) {
  require(is_node_name(name), "the name of a node", "`" + name + "`",
          "no white space, control character, @ or +");
  require(std::ranges::none_of(beat.addresses, [](char c) { return c == '\n' || c == '\r'; }),
          "the addresses of node " + name, "several lines", "one line");
  if (recovery_.is_under_way) {
    recover(name, beat, now);
    return false;
  }
  if (beat.generation > map_.generation) {
    throw Error("server", ErrorKind::usage,
                {.what = name + " has a newer map than the scheduler",
                 .got = fmt::format("generation {}", beat.generation),
                 .expected = fmt::format("at most {}", map_.generation),
                 .hint = "if the scheduler was lost, begin it again with "
                         "SchedulerOptions::takes_over"});
  }
  const auto generation = map_.generation;
  const auto gone = removed_.find(name);
  if (gone != removed_.end() && gone->second.instance == beat.instance) return false;
  const auto known = nodes_.find(name);
  if (known != nodes_.end()) {
    if (known->second.beat.instance == beat.instance && beat.number <= known->second.beat.number) {
      return false;
    }
    // Another process took the name, so the one before is gone.
    if (known->second.beat.instance != beat.instance) remove(name);
  }
  if (!nodes_.contains(name) && !join(name, beat, now)) return false;
  auto& node = nodes_.at(name);
  node.heard = now;
  node.beat = beat;
  take_tables(beat);
  take_copies(name, beat);
  take_saved(name, beat);
  // A worker that leaves may have finished steps that its earlier beats do not name.
  bool changed = update_steps();
  if (beat.role == Role::worker && beat.is_leaving) remove(name);
  update_ranges();
  changed = update_steps() || changed;
  return changed || map_.generation != generation;
}

void Membership::take_tables(const Beat& beat) {
  if (!map_.tables.empty() || beat.tables.empty()) return;
  auto brought = parse_map(beat.tables);
  check_tables(brought.tables, brought.ranges.size());
  map_.tables = std::move(brought.tables);
  map_.ranges.resize(brought.ranges.size());
  ++map_.generation;
}

bool Membership::join(const std::string& name, const Beat& beat, net::Duration now) {
  if (!beginning_.failure.empty()) {
    removed_[name] = {beat.instance, beat.is_leaving, beginning_.failure};
    return false;
  }
  Node node{.beat = beat, .heard = now};
  if (beat.role == Role::worker) {
    // It had a number before. Servers may have executed its requests under that number, so that
    // they would count twice under another one.
    if (beat.generation > 0) {
      removed_[name] = {beat.instance, beat.is_leaving,
                        name + " was lost together with an earlier scheduler"};
      return false;
    }
    node.worker = ++last_worker_;
    node.before_first = committed_;
    node.granted = committed_;
    map_.workers[node.worker] = name;
    ++map_.generation;
    if (!has_begun_) {
      auto& [workers, since, failure] = beginning_;
      workers.insert(name);
      if (!since) since = now;
      has_begun_ = workers.size() >= static_cast<size_t>(options_.first_workers);
    }
  }
  nodes_[name] = node;
  return true;
}

void Membership::remove(const std::string& name) {
  const auto node = nodes_.extract(name).mapped();
  removed_[name] = {node.beat.instance, node.beat.is_leaving,
                    fmt::format("the scheduler had not heard of {} for {:g} s", name,
                                std::chrono::duration<double>(options_.limit).count()),
                    node.worker != 0};
  if (node.worker == 0) {
    // Copies that a new process under this name would not have.
    for (auto& range : map_.ranges) {
      std::erase(range.holders, name);
      std::erase_if(range.joiners, [&](const Joiner& joiner) { return joiner.server == name; });
    }
  } else {
    map_.workers.erase(node.worker);
    map_.departed[node.worker] = std::max(node.beat.finished, node.before_first);
  }
  ++map_.generation;
}

void Membership::take_copies(const std::string& name, const Beat& beat) {
  std::set<std::string> servers;
  for (const auto& [other, node] : nodes_) {
    if (node.worker == 0 && !node.beat.is_leaving) servers.insert(other);
  }
  for (const auto& copy : beat.copies) {
    if (copy.range >= map_.ranges.size() || map_.master(copy.range) != name) continue;
    // The master may speak of a copy that it made before the server was lost and joined again.
    const bool is_current =
        std::ranges::any_of(map_.ranges[copy.range].joiners, [&](const Joiner& joiner) {
          return joiner.server == copy.server && joiner.since <= beat.generation;
        });
    if (!is_current) continue;
    complete_copy(map_, copy.range, copy.server, servers, options_.replicas);
    ++map_.generation;
  }
}

void Membership::update_ranges() {
  std::set<std::string> servers, leaving;
  for (const auto& [name, node] : nodes_) {
    if (node.worker == 0) (node.beat.is_leaving ? leaving : servers).insert(name);
  }
  if (is_assigned_) {
    if (plan_ranges(map_, servers, leaving, options_.replicas)) ++map_.generation;
    if (snapshot_.number != 0) find_lost_ranges();
  } else if (!map_.tables.empty() &&
             servers.size() >= static_cast<size_t>(options_.first_servers)) {
    assign_ranges(map_, servers, options_.replicas);
    ++map_.generation;
    is_assigned_ = true;
  }
}

bool Membership::update_steps() {
  StepRequest request;
  bool changed = false;
  for (const auto& [name, node] : nodes_) {
    if (node.worker != 0) {
      request.finished[name] = std::max(node.beat.finished, node.before_first);
    }
  }
  if (!request.finished.empty() && has_begun_) {
    const auto least = std::ranges::min_element(
        request.finished, [](const auto& a, const auto& b) { return a.second < b.second; });
    if (least->second > committed_) {
      committed_ = least->second;
      changed = true;
    }
    for (auto& [name, node] : nodes_) {
      if (node.worker == 0 || node.beat.wanted <= node.granted) continue;
      if (snapshot_.number != 0 && node.beat.wanted > snapshot_.last_step) continue;
      request.worker = name;
      request.step = node.beat.wanted;
      if (!consistency_(request)) continue;
      node.granted = node.beat.wanted;
      changed = true;
    }
  }
  if (snapshot_.number != 0 && !snapshot_.is_drained) {
    update_snapshot();
    changed = changed || snapshot_.is_drained;
  }
  return changed;
}

bool Membership::expire(net::Duration now) {
  if (recovery_.is_under_way) {
    last_expire_ = now;
    if (!recovery_.began) return false;
    // Nodes that know no map yet do not prove that no other one does.
    const auto patience = options_.limit * (recovery_.map.generation == 0 ? kFreshRun : 1);
    if (now - *recovery_.began < patience) return false;
    finish_recovery();
    return true;
  }
  std::vector<std::string> lost;
  const auto pause = now - std::exchange(last_expire_, now);
  if (pause > options_.limit / 2) {
    for (auto& [name, node] : nodes_) node.heard = std::min(now, node.heard + pause);
  }
  for (const auto& [name, node] : nodes_) {
    if (now - node.heard > options_.limit) lost.push_back(name);
  }
  std::string failure;
  for (const auto& name : lost) {
    const auto beat = nodes_.at(name).beat;
    remove(name);
    if (!beat.is_leaving && is_needed(beat.role, name)) {
      failure = fmt::format("{} is lost: {}", name, removed_.at(name).refusal);
    }
  }
  if (!failure.empty()) {
    fail(failure);
    return true;
  }
  if (end_if_some_are_missing(now)) return true;
  if (lost.empty()) return false;
  update_ranges();
  update_steps();
  return true;
}

bool Membership::note_end(const std::string& name, const std::string& how) {
  ended_.insert(name);
  const auto role = name.starts_with("server") ? Role::server : Role::worker;
  if (recovery_.is_under_way || !is_needed(role, name)) return false;
  fail(fmt::format("{} is lost: {}", name, how));
  return true;
}

bool Membership::is_needed(Role role, const std::string& name) const {
  if (is_over_ || !beginning_.failure.empty() || have_workers_ended()) return false;
  if (role == Role::worker) return !has_begun_ && !beginning_.workers.contains(name);
  if (!map_.tables.empty()) return !is_assigned_;
  // Servers without tables have no copies of each other's work. Workers leave after their last sum.
  return std::ranges::none_of(removed_, [](const auto& entry) {
    return entry.second.is_worker && entry.second.is_leaving;
  });
}

void Membership::fail(const std::string& reason) {
  beginning_.failure = reason;
  for (const auto& name : nodes()) {
    remove(name);
    removed_[name].refusal = reason;
  }
}

std::string Membership::missing() const {
  if (!beginning_.since) return {};
  std::vector<std::string> parts;
  if (!has_begun_) {
    parts.push_back(
        fmt::format("{} of {} workers", beginning_.workers.size(), options_.first_workers));
  }
  if (!is_assigned_ && !map_.tables.empty()) {
    parts.push_back(fmt::format("{} of {} servers", counts().servers, options_.first_servers));
  }
  if (parts.empty()) return {};
  return fmt::format("{} have joined", fmt::join(parts, " and "));
}

bool Membership::end_if_some_are_missing(net::Duration now) {
  if (!beginning_.since || now - *beginning_.since <= options_.join_timeout) return false;
  const auto missing = this->missing();
  if (missing.empty()) return false;
  fail(fmt::format("only {} within {:g} s of the first worker", missing,
                   std::chrono::duration<double>(options_.join_timeout).count()));
  return true;
}

bool Membership::set_consistency(Consistency consistency) {
  consistency_ = std::move(consistency);
  return update_steps();
}

bool Membership::may_leave(const std::string& name, const Node& node) const {
  return node.beat.is_leaving && node.worker == 0 && !map_.has_server(name) &&
         node.beat.generation == map_.generation;
}

State Membership::state_for(const std::string& name) const {
  State state{.generation = map_.generation, .committed = committed_, .is_over = is_over_};
  const auto found = nodes_.find(name);
  if (recovery_.is_under_way) {
    state.wants_map = true;
    if (found != nodes_.end()) state.instance = found->second.beat.instance;
    return state;
  }
  if (found == nodes_.end()) {
    const auto gone = removed_.find(name);
    if (gone == removed_.end()) return state;
    state.instance = gone->second.instance;
    if (gone->second.is_leaving) {
      state.may_leave = true;
    } else {
      state.refusal = gone->second.refusal;
    }
    return state;
  }
  const auto& node = found->second;
  state.instance = node.beat.instance;
  state.may_leave = may_leave(name, node);
  state.worker = node.worker;
  state.granted = node.granted;
  state.before_first = node.before_first;
  const auto directory = this->directory();
  state.directory_version = fingerprint(directory);
  if (state.directory_version != node.beat.directory) state.directory = directory;
  if (node.worker == 0 && snapshot_.is_drained) {
    state.snapshot = snapshot_.number;
    state.snapshot_step = snapshot_.last_step;
    state.snapshot_folder = snapshot_.folder;
  }
  // Nobody sees a map without tables.
  if (node.beat.generation < map_.generation && !map_.tables.empty()) state.map = to_text(map_);
  return state;
}

std::vector<std::string> Membership::nodes() const {
  std::vector<std::string> names;
  for (const auto& [name, node] : nodes_) names.push_back(name);
  return names;
}

std::string Membership::directory() const {
  std::string text;
  for (const auto& [name, node] : nodes_) {
    if (node.worker == 0 && !node.beat.addresses.empty()) {
      text += name + " " + node.beat.addresses + "\n";
    }
  }
  return text;
}

bool Membership::have_workers_ended() const {
  return (has_begun_ || !beginning_.failure.empty()) &&
         std::ranges::none_of(nodes_, [](const auto& entry) { return entry.second.worker != 0; });
}

bool Membership::have_all_heard() const {
  auto done = ended_;
  for (const auto& [name, removed] : removed_) done.insert(name);
  return std::ssize(done) >= options_.first_servers + options_.first_workers;
}

NodeCounts Membership::counts() const {
  NodeCounts counts;
  for (const auto& [name, node] : nodes_) ++(node.worker == 0 ? counts.servers : counts.workers);
  return counts;
}

}  // namespace troika::server
