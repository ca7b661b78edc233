#include "troika/server/key_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "troika/base/random.h"
#include "troika/base/text.h"
#include "troika/server/held_range.h"

namespace troika::server {

namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& problem,
                         const std::string& got, const std::string& expected) {
  throw Error("server", ErrorKind::usage,
              {.what = what + ": " + problem, .got = got, .expected = expected});
}

const char* type_name(ValueType type) {
  return type == ValueType::float32 ? "float32" : "float64";
}

void check_memory(Operation operation, const TableSpec& table, const std::string& what,
                  uint64_t keys, const ValueMemory& into) {
  if (!reads(operation) || table.width == 0 || !into.owner) {
    refuse(what, "memory for values", into.owner ? "memory" : "memory without an owner",
           "none, except of reads of tables with a width");
  }
  const uint64_t expected = keys * width_of(table, operation) * size_of(table.type);
  if (into.type != table.type) {
    refuse(what, "the type of the memory for values", type_name(into.type), type_name(table.type));
  }
  if (into.bytes.size() != expected) {
    refuse(what, "the memory for values", fmt::format("{} bytes", into.bytes.size()),
           fmt::format("{} bytes", expected));
  }
}

}  // namespace

uint32_t table_index(const RingMap& map, std::string_view table) {
  const auto found = std::ranges::find(map.tables, table, &TableSpec::name);
  if (found != map.tables.end()) return static_cast<uint32_t>(found - map.tables.begin());
  std::vector<std::string> names;
  for (const auto& spec : map.tables) names.push_back(spec.name);
  throw Error("server", ErrorKind::usage,
              {.what = "unknown table",
               .got = std::string(table),
               .expected = fmt::format("{}", fmt::join(names, ", ")),
               .hint = "did you mean " + nearest(table, names) + "?"});
}

void check_call(Operation operation, const TableSpec& table, const std::string& what,
                const Keys& keys, const Values* values, const CallOptions& options) {
  if (has_states(operation) && state_width(table) == 0) {
    refuse(what, "the states of this table cannot be moved", to_text(table),
           "a width above 0, and a rule that is no user's function");
  }
  const uint64_t count = keys.count();
  if (keys.list.empty() && count > 0) {
    const uint64_t most = table.keys == 0 ? 0 : table.keys;
    if (keys.run.first >= most || count > most - keys.run.first) {
      refuse(what, table.keys == 0 ? "a sparse table takes lists of keys" : "no such keys",
             fmt::format("{} keys from {}", count, keys.run.first),
             fmt::format("keys below {}", most));
    }
  }
  for (size_t i = 0; i < keys.list.size(); ++i) {
    if (i > 0 && keys.list[i] <= keys.list[i - 1]) {
      refuse(what, "the keys are not ascending",
             fmt::format("{} after {}", keys.list[i], keys.list[i - 1]), "a greater one");
    }
  }
  if (!keys.list.empty() && table.keys > 0 && keys.list.back() >= table.keys) {
    refuse(what, "no such key", std::to_string(keys.list.back()),
           fmt::format("keys below {}", table.keys));
  }
  const size_t size = size_of(table.type);
  uint64_t expected = count * width_of(table, operation);
  if (values && table.width == 0) {
    if (options.lengths.size() != count) {
      refuse(what, "lengths of the keys' values", std::to_string(options.lengths.size()),
             fmt::format("{}, one for each key", count));
    }
    expected = std::accumulate(options.lengths.begin(), options.lengths.end(), uint64_t{0});
  }
  if (values && values->type != table.type) {
    refuse(what, "the values' type", type_name(values->type), type_name(table.type));
  }
  if (values && values->bytes.size() != expected * size) {
    refuse(what, "the number of values", std::to_string(values->bytes.size() / size),
           std::to_string(expected));
  }
  if (options.into) check_memory(operation, table, what, count, *options.into);
}

std::vector<KeyGroup> group_keys(const TableSpec& table, const Keys& keys, uint32_t ranges) {
  std::vector<KeyGroup> groups;
  const uint64_t count = keys.count();
  if (table.keys == 0) {
    std::map<uint32_t, KeyGroup> by_range;
    for (uint64_t i = 0; i < count; ++i) {
      const uint32_t range = range_of(table, keys.key(i), ranges);
      auto& group = by_range[range];
      group.range = range;
      group.positions.push_back(i);
      ++group.count;
    }
    for (auto& [range, group] : by_range) groups.push_back(std::move(group));
    return groups;
  }
  for (uint64_t i = 0; i < count;) {
    const uint32_t range = range_of(table, keys.key(i), ranges);
    const auto span = keys_of(table, range, ranges);
    const uint64_t first = i;
    if (keys.list.empty()) {
      i = std::min(count, i + (span.first + span.count - keys.key(i)));
    } else {
      while (i < count && span.contains(keys.key(i))) ++i;
    }
    groups.push_back({range, first, i - first});
  }
  return groups;
}

RangeRequest make_request(Operation operation, uint32_t index, const TableSpec& table,
                          const Keys& keys, const Values* values, const CallOptions& options,
                          const KeyGroup& group, const PushFilter* filter, uint64_t draw) {
  RequestBody body{.operation = operation, .table = index};
  const size_t size = size_of(table.type);
  std::vector<Key> listed;
  std::vector<uint32_t> lengths;
  std::vector<char> gathered;
  const uint32_t width = width_of(table, operation);
  const auto length = [&](uint64_t key) { return width > 0 ? width : options.lengths[key]; };
  if (keys.list.empty()) {
    body.run = {keys.key(group.first), group.count};
  } else if (group.positions.empty()) {
    body.keys = keys.list.subspan(group.first, group.count);
  } else {
    for (const uint64_t i : group.positions) listed.push_back(keys.key(i));
    body.keys = listed;
  }
  if (values) {
    const bool has_lengths = width == 0;
    // The first value of each key of the call, for lengths that differ.
    std::vector<uint64_t> begins(has_lengths ? keys.count() + 1 : 0);
    for (uint64_t i = 0; i + 1 < begins.size(); ++i) begins[i + 1] = begins[i] + length(i);
    const auto begin = [&](uint64_t i) { return has_lengths ? begins[i] : i * width; };
    for (uint64_t i = 0; has_lengths && i < group.count; ++i) {
      lengths.push_back(length(group.position(i)));
    }
    body.lengths = lengths;
    if (group.positions.empty()) {
      const uint64_t first = begin(group.first), last = begin(group.first + group.count);
      body.values = values->bytes.subspan(first * size, (last - first) * size);
    } else {
      for (const uint64_t i : group.positions) {
        const auto bytes = values->bytes.subspan(begin(i) * size, length(i) * size);
        gathered.insert(gathered.end(), bytes.begin(), bytes.end());
      }
      body.values = gathered;
    }
  }
  RangeRequest request{.call = {},
                       .keys = group,
                       .operation = operation,
                       .table = index,
                       .run = body.run,
                       .rate = options.rate};
  if (filter) request.coding = filter->coding(operation, body.keys);
  request.parts = make_parts(body, table.type, request.coding,
                             filter ? mix(filter->seed(), draw, group.range) : 0,
                             gathered.empty() ? options.keeps : nullptr);
  const size_t bytes = request.parts.bytes();
  if (bytes > kMostMessage || request.parts.plain_bytes > kMostMessage) {
    refuse("a request", "too many values in one range of the ring", fmt::format("{} bytes", bytes),
           fmt::format("at most {}", kMostMessage));
  }
  return request;
}

}  // namespace troika::server
