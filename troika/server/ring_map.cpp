#include "troika/server/ring_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::server {

namespace {

std::string holders_text(const RangeHolders& range) {
  std::string text;
  if (range.is_lost) text += " lost";
  for (const auto& holder : range.holders) text += " " + holder;
  for (const auto& joiner : range.joiners) {
    text += fmt::format(" +{}@{}", joiner.server, joiner.since);
  }
  return text;
}

[[noreturn]] void refuse(const std::string& line) {
  throw Error("server", ErrorKind::usage,
              {.what = "a line of a map does not parse", .got = "`" + line + "`"});
}

uint64_t number(const std::string& word, const std::string& line) {
  const auto value = parse_int(word);
  if (!value || *value < 0) refuse(line);
  return static_cast<uint64_t>(*value);
}

void parse_ranges(const std::vector<std::string>& words, const std::string& line, RingMap& map) {
  const auto bounds = split(words[1], '-');
  if (bounds.size() != 2 || number(bounds[0], line) != map.ranges.size()) refuse(line);
  const uint64_t last = number(bounds[1], line);
  if (last < map.ranges.size() || last >= uint64_t{1} << 20) refuse(line);
  RangeHolders range;
  for (size_t i = 2; i < words.size(); ++i) {
    if (words[i] == "lost" && i == 2) {
      range.is_lost = true;
    } else if (words[i].starts_with("+")) {
      const auto joiner = split(words[i].substr(1), '@');
      if (joiner.size() != 2) refuse(line);
      range.joiners.push_back({joiner[0], number(joiner[1], line)});
    } else {
      range.holders.push_back(words[i]);
    }
  }
  map.ranges.resize(last + 1, range);
}

bool has(const std::vector<std::string>& servers, const std::string& server) {
  return std::ranges::find(servers, server) != servers.end();
}

// Plans by the masters that there will be when all copies are made.
class Plan {
 public:
  Plan(RingMap& map, const std::set<std::string>& servers, int replicas)
      : map_(map), servers_(servers), copies_(copies(servers, replicas)) {}

  static size_t copies(const std::set<std::string>& servers, int replicas) {
    return std::min(static_cast<size_t>(replicas) + 1, servers.size());
  }

  void remove_gone(RangeHolders& range, const std::set<std::string>& leaving) const {
    if (range.is_lost) return;
    std::erase_if(range.holders, [&](const auto& holder) {
      return !servers_.contains(holder) && !leaving.contains(holder);
    });
    std::erase_if(range.joiners, [&](const auto& j) { return !servers_.contains(j.server); });
    if (range.holders.empty()) {
      range.joiners.clear();
      range.is_lost = true;
    } else if (staying(range) >= copies_ && copies_ > 0) {
      std::erase_if(range.holders, [&](const auto& h) { return leaving.contains(h); });
      if (range.joiners.empty()) range.holders.resize(copies_);
    }
  }

  void add_copies(RangeHolders& range) const {
    while (!range.is_lost && staying(range) + range.joiners.size() < copies_) {
      std::optional<std::string> best;
      for (const auto& server : servers_) {
        if (has_copy(range, server)) continue;
        if (!best || load(server) < load(*best)) best = server;
      }
      if (!best) return;
      range.joiners.push_back({*best, map_.generation + 1});
    }
  }

  // Moves masters from the server with most to the one with fewest, a range at a time.
  void balance() {
    while (servers_.size() > 1) {
      std::string most = *servers_.begin(), fewest = *servers_.begin();
      for (const auto& server : servers_) {
        if (masters(server) > masters(most)) most = server;
        if (masters(server) < masters(fewest)) fewest = server;
      }
      if (masters(most) < masters(fewest) + 2 || !move(most, fewest)) return;
    }
  }

 private:
  size_t staying(const RangeHolders& range) const {
    return static_cast<size_t>(
        std::ranges::count_if(range.holders, [&](const auto& h) { return servers_.contains(h); }));
  }
  static bool has_copy(const RangeHolders& range, const std::string& server) {
    return has(range.holders, server) ||
           std::ranges::any_of(range.joiners, [&](const auto& j) { return j.server == server; });
  }
  size_t load(const std::string& server) const {
    return static_cast<size_t>(
        std::ranges::count_if(map_.ranges, [&](const auto& r) { return has_copy(r, server); }));
  }
  std::string master_to_be(const RangeHolders& range) const {
    if (range.holders.empty()) return "";
    if (staying(range) >= copies_ && !range.joiners.empty()) return range.joiners[0].server;
    for (const auto& holder : range.holders) {
      if (servers_.contains(holder)) return holder;
    }
    return range.joiners.empty() ? "" : range.joiners[0].server;
  }
  size_t masters(const std::string& server) const {
    return static_cast<size_t>(std::ranges::count_if(
        map_.ranges, [&](const auto& range) { return master_to_be(range) == server; }));
  }
  bool move(const std::string& from, const std::string& to) {
    RangeHolders* without_copy = nullptr;
    for (auto& range : map_.ranges) {
      if (master_to_be(range) != from || !range.joiners.empty() || staying(range) < copies_)
        continue;
      const auto copy = std::ranges::find(range.holders, to);
      if (copy != range.holders.end()) {
        std::rotate(range.holders.begin(), copy, copy + 1);
        return true;
      }
      without_copy = &range;
    }
    if (without_copy) without_copy->joiners.push_back({to, map_.generation + 1});
    return without_copy != nullptr;
  }

  RingMap& map_;
  const std::set<std::string>& servers_;
  const size_t copies_;
};

}  // namespace

std::string RingMap::master(uint32_t range) const {
  const auto& holders = ranges[range].holders;
  return holders.empty() ? "" : holders[0];
}

bool RingMap::has_server(uint32_t range, const std::string& server) const {
  return has(ranges[range].holders, server) ||
         std::ranges::any_of(ranges[range].joiners,
                             [&](const auto& joiner) { return joiner.server == server; });
}

bool RingMap::has_server(const std::string& server) const {
  for (uint32_t i = 0; i < ranges.size(); ++i) {
    if (has_server(i, server)) return true;
  }
  return false;
}

std::string to_text(const RingMap& map) {
  std::string text = fmt::format("generation {}\n", map.generation);
  for (const auto& table : map.tables) text += "table " + to_text(table) + "\n";
  if (!map.origin.empty()) text += "origin " + map.origin + "\n";
  for (size_t first = 0; first < map.ranges.size();) {
    size_t last = first;
    while (last + 1 < map.ranges.size() && map.ranges[last + 1] == map.ranges[first]) ++last;
    text += fmt::format("ranges {}-{}{}\n", first, last, holders_text(map.ranges[first]));
    first = last + 1;
  }
  for (const auto& [id, name] : map.workers) text += fmt::format("worker {} {}\n", id, name);
  for (const auto& [id, step] : map.departed) text += fmt::format("departed {} {}\n", id, step);
  return text;
}

void check_tables(const std::vector<TableSpec>& tables, size_t ranges) {
  const auto require = [](bool holds, const std::string& what, const std::string& got,
                          const std::string& expected) {
    if (holds) return;
    throw Error("server", ErrorKind::usage, {.what = what, .got = got, .expected = expected});
  };
  require(ranges >= 1 && ranges <= size_t{1} << 20, "the number of ranges", std::to_string(ranges),
          "1 to 1048576");
  require(!tables.empty(), "a parameter server without tables", "none", "at least one");
  std::set<std::string> names;
  for (const auto& table : tables) {
    check_table(table);
    require(names.insert(table.name).second, "two tables of one name", table.name, "other names");
  }
}

std::string to_text(const BroughtTables& brought) {
  if (brought.tables.empty()) return "";
  check_tables(brought.tables, brought.ranges);
  RingMap map;
  map.tables = brought.tables;
  map.ranges.resize(brought.ranges);
  return to_text(map);
}

RingMap parse_map(std::string_view text) {
  RingMap map;
  for (const auto& line : split(trim(text), '\n')) {
    const auto words = split(line, ' ');
    if (words.size() < 2) refuse(line);
    if (words[0] == "generation") {
      map.generation = number(words[1], line);
    } else if (words[0] == "table") {
      map.tables.push_back(parse_table(line.substr(6)));
    } else if (words[0] == "origin") {
      map.origin = line.substr(7);
    } else if (words[0] == "ranges") {
      parse_ranges(words, line, map);
    } else if (words[0] == "worker" && words.size() == 3) {
      map.workers[number(words[1], line)] = words[2];
    } else if (words[0] == "departed" && words.size() == 3 && parse_int(words[2])) {
      map.departed[number(words[1], line)] = *parse_int(words[2]);
    } else {
      refuse(line);
    }
  }
  if (map.generation > 0 && (map.ranges.empty() || map.tables.empty())) refuse("(none)");
  return map;
}

bool plan_ranges(RingMap& map, const std::set<std::string>& servers,
                 const std::set<std::string>& leaving, int replicas) {
  const auto before = map.ranges;
  Plan plan(map, servers, replicas);
  for (auto& range : map.ranges) {
    plan.remove_gone(range, leaving);
    plan.add_copies(range);
  }
  plan.balance();
  return map.ranges != before;
}

void assign_ranges(RingMap& map, const std::set<std::string>& servers, int replicas) {
  const std::vector<std::string> names(servers.begin(), servers.end());
  const size_t copies = Plan::copies(servers, replicas);
  for (size_t i = 0; i < map.ranges.size(); ++i) {
    const size_t owner = i * names.size() / map.ranges.size();
    auto& range = map.ranges[i];
    // Neighbouring ranges of one master have their other copies on different servers.
    for (size_t k = 0; k < copies; ++k) {
      const size_t step = k == 0 ? 0 : 1 + (i + k - 1) % (names.size() - 1);
      range.holders.push_back(names[(owner + step) % names.size()]);
    }
  }
}

void complete_copy(RingMap& map, uint32_t range, const std::string& server,
                   const std::set<std::string>& servers, int replicas) {
  auto& [holders, joiners, is_lost] = map.ranges[range];
  const auto is_it = [&](const Joiner& joiner) { return joiner.server == server; };
  if (std::erase_if(joiners, is_it) == 0) return;
  const auto staying =
      std::ranges::count_if(holders, [&](const auto& h) { return servers.contains(h); });
  const bool has_all = static_cast<size_t>(staying) >= Plan::copies(servers, replicas);
  holders.insert(has_all ? holders.begin() : holders.end(), server);
}

}  // namespace troika::server
