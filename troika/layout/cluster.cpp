#include "troika/layout/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>
#include <type_traits>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

constexpr std::array<std::pair<const char*, Link Cluster::*>, 3> kLinks{
    {{"group", &Cluster::group}, {"host", &Cluster::host}, {"network", &Cluster::network}}};

std::string show(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& one) { out << one; });
  return out.str();
}

constexpr double kMostLatency = 1e9, kMostRate = 1e18;

// A table of the file, with its path in the file.
class Section {
 public:
  Section(const toml::node& node, std::string_view file, std::string path)
      : file_(file), path_(std::move(path)) {
    if (!node.is_table()) fail(path_, node, show(node), "a table of keys");
    table_ = node.as_table();
  }

  void require_keys(const std::vector<std::string>& known) const {
    for (const auto& [key, value] : *table_) {
      const std::string name(key.str());
      if (std::ranges::count(known, name) > 0) continue;
      fail("unknown key " + path_of(name), value, "",
           fmt::format("one of {}", fmt::join(known, ", ")),
           fmt::format("did you mean {}?", nearest(name, known)));
    }
  }
  bool has(const std::string& key) const { return table_->contains(key); }
  Section section(const std::string& key) const { return {*table_->get(key), file_, path_of(key)}; }

  // Returns a number from `least` to `most`, or `otherwise` if the key is missing.
  template <typename T>
  T number(const std::string& key, T least, T otherwise,
           T most = std::numeric_limits<T>::max()) const {
    const auto* node = table_->get(key);
    if (!node) return otherwise;
    auto value = node->value_exact<T>();
    // TOML parses 1 as an integer.
    const auto integer = node->value_exact<int64_t>();
    if (!value && integer) value = static_cast<T>(*integer);
    if (value && *value > most) {
      fail(path_of(key), *node, show(*node), fmt::format("at most {:g}", double(most)));
    }
    if (value && *value >= least) return *value;
    fail(path_of(key), *node, show(*node),
         fmt::format("{} >= {}", std::is_same_v<T, double> ? "a number" : "an integer", least));
  }
  // Returns a rate per second, or 0 if it is not known.
  double rate(const std::string& key) const {
    const auto value = number<double>(key, 0, 0, kMostRate);
    if (value == 0 || value >= 1) return value;
    const auto& node = *table_->get(key);
    fail(path_of(key), node, show(node), "at least 1, or 0: not known");
  }
  std::string text(const std::string& key) const {
    const auto* node = table_->get(key);
    if (!node) fail(path_of(key), *table_, "no such key", "a string");
    const auto value = node->value_exact<std::string>();
    if (!value || value->empty()) fail(path_of(key), *node, show(*node), "a string");
    return *value;
  }
  // Throws Error(usage) about the value of the key, with its line, or the table's if it has no such
  // key.
  [[noreturn]] void refuse_value(const std::string& key, std::string got,
                                 std::string expected) const {
    const auto* node = table_->get(key);
    if (!node) node = table_;
    fail(path_of(key), *node, std::move(got), std::move(expected));
  }

 private:
  std::string path_of(const std::string& key) const {
    return path_.empty() ? key : path_ + "." + key;
  }
  [[noreturn]] void fail(const std::string& what, const toml::node& node, std::string got,
                         std::string expected, std::string hint = {}) const {
    refuse(fmt::format("{} ({}:{})", what, file_, node.source().begin.line), std::move(got),
           std::move(expected), std::move(hint));
  }

  std::string_view file_;
  std::string path_;
  const toml::table* table_ = nullptr;
};

void add_devices(Cluster& cluster, const Section& row, int most) {
  row.require_keys({"host", "count", "group", "memory_bytes", "flops"});
  const auto host = row.text("host");
  const auto count = row.number<int64_t>("count", 0, 1, most);
  const bool is_spare = count == 0;
  if (std::ranges::count(is_spare ? cluster.hosts : cluster.spares, host) > 0) {
    row.refuse_value("host", host + " with devices and with count 0",
                     "devices, or one row with count 0");
  }
  if (is_spare) {
    if (std::ranges::count(cluster.spares, host) == 0) cluster.spares.push_back(host);
    return;
  }
  auto found = std::ranges::find(cluster.hosts, host);
  if (found == cluster.hosts.end()) found = cluster.hosts.insert(found, host);
  if (const int64_t all = cluster.ranks() + count; all > most) {
    row.refuse_value("count", fmt::format("{} devices in all", all),
                     fmt::format("at most {}", most));
  }
  constexpr int64_t kMostGroup = std::numeric_limits<int>::max();
  cluster.devices.push_back(
      {.host = static_cast<int>(found - cluster.hosts.begin()),
       .count = static_cast<int>(count),
       .group = static_cast<int>(row.number<int64_t>("group", 0, 0, kMostGroup)),
       .memory_bytes = row.number<int64_t>("memory_bytes", 0, 0),
       .flops = row.rate("flops")});
}

void add_bandwidth(Cluster& cluster, const Section& row) {
  row.require_keys({"host", "bandwidth"});
  const auto host = row.text("host");
  const auto is_in = [&](const std::vector<std::string>& hosts) {
    return std::ranges::count(hosts, host) > 0;
  };
  if (!is_in(cluster.hosts) && !is_in(cluster.spares)) {
    row.refuse_value("host", host, "a host of [[devices]]");
  }
  const double bandwidth = row.rate("bandwidth");
  if (bandwidth == 0) row.refuse_value("bandwidth", "none", "bytes a second, at least 1");
  if (!cluster.host_bandwidths.emplace(host, bandwidth).second) {
    row.refuse_value("host", host + " twice", "one bandwidth of each host");
  }
}

// Returns the tables of an array; null if there is no such key.
const toml::array* rows_of(const toml::table& root, std::string_view key, std::string_view file) {
  const auto* given = root.get(key);
  if (!given || given->is_array()) return given ? given->as_array() : nullptr;
  refuse(fmt::format("{} ({}:{})", key, file, given->source().begin.line), "a table",
         "an array of tables", fmt::format("[[{}]]", key));
}

}  // namespace

Cluster Cluster::uniform(int hosts, int count) {
  Cluster cluster;
  for (int host = 0; host < hosts; ++host) {
    cluster.hosts.push_back(fmt::format("host-{}", host));
    cluster.devices.push_back({.host = host, .count = count});
  }
  return cluster;
}

Cluster Cluster::parse(std::string_view toml, std::string_view name, int most) {
  toml::table root;
  try {
    root = toml::parse(toml, name);
  } catch (const toml::parse_error& problem) {
    refuse(fmt::format("{}:{} is not TOML", name, problem.source().begin.line),
           std::string(problem.description()), "", "see https://toml.io");
  }
  const Section file(root, name, "");
  file.require_keys({"links", "hosts", "devices"});
  Cluster cluster;
  if (file.has("links")) {
    const auto links = file.section("links");
    links.require_keys({"group", "host", "network"});
    for (const auto& [key, link] : kLinks) {
      if (!links.has(key)) continue;
      const auto row = links.section(key);
      row.require_keys({"latency", "bandwidth"});
      cluster.*link = {row.number<double>("latency", 0, 0, kMostLatency), row.rate("bandwidth")};
    }
  }
  if (const auto* rows = rows_of(root, "devices", name)) {
    for (const auto& row : *rows) add_devices(cluster, {row, name, "devices"}, most);
  }
  if (const auto* rows = rows_of(root, "hosts", name)) {
    for (const auto& row : *rows) add_bandwidth(cluster, {row, name, "hosts"});
  }
  if (cluster.devices.empty()) {
    refuse(fmt::format("{} has no devices", name), "", "a table [[devices]] with a host");
  }
  return cluster;
}

std::string Cluster::text() const {
  std::string text;
  for (const auto& [key, link] : kLinks) {
    text += fmt::format("[links.{}]\nlatency = {}  # seconds\nbandwidth = {}  # bytes a second\n\n",
                        key, (this->*link).latency, (this->*link).bandwidth);
  }
  for (const auto& [host, bandwidth] : host_bandwidths) {
    text += fmt::format("[[hosts]]\nhost = {}\nbandwidth = {}\n\n",
                        show(toml::value<std::string>(host)), bandwidth);
  }
  for (const auto& row : devices) {
    const toml::value<std::string> host(hosts[static_cast<size_t>(row.host)]);
    text += fmt::format(
        "[[devices]]\nhost = {}\ncount = {}\ngroup = {}\nmemory_bytes = {}\nflops = {}\n\n",
        show(host), row.count, row.group, row.memory_bytes, row.flops);
  }
  for (const auto& spare : spares) {
    text +=
        fmt::format("[[devices]]\nhost = {}\ncount = 0\n\n", show(toml::value<std::string>(spare)));
  }
  return text;
}

int Cluster::ranks() const {
  int sum = 0;
  for (const auto& row : devices) sum += row.count;
  return sum;
}

const Devices& Cluster::devices_of(int rank) const {
  TROIKA_CHECK(rank >= 0 && rank < ranks(), fmt::format("rank {} of {}", rank, ranks()));
  auto row = devices.begin();
  for (int end = row->count; rank >= end; end += row->count) ++row;
  return *row;
}

Link Cluster::network_of(const std::string& name) const {
  const auto own = host_bandwidths.find(name);
  return {network.latency, own == host_bandwidths.end() ? network.bandwidth : own->second};
}

}  // namespace troika::layout
