#include "troika/cluster/slurm/site.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/cluster/slurm/time_limit.h"

namespace troika::cluster::slurm {

namespace {

[[noreturn]] void fail_site(const std::string& what, const std::string& got,
                            const std::string& expected, const std::string& hint = "") {
  throw Error("slurm", ErrorKind::usage,
              {.what = what, .got = got, .expected = expected, .hint = hint});
}

// A TOML table that reports keys which were never read.
class Keys {
 public:
  Keys(const toml::table& table, std::string prefix, std::string file)
      : table_(table), prefix_(std::move(prefix)), file_(std::move(file)) {}

  void read(const char* key, bool& value) { take(key, value, "true or false"); }
  void read(const char* key, std::string& value) { take(key, value, "a string"); }

  void read(const char* key, int& value) {
    int64_t number = value;
    take(key, number, "an integer");
    if (number < 0 || number > std::numeric_limits<int>::max()) {
      fail_site(place(key), std::to_string(number), "an integer >= 0");
    }
    value = static_cast<int>(number);
  }

  void read(const char* key, std::chrono::seconds& value) {
    std::string text;
    read(key, text);
    if (text.empty()) return;
    const auto time = parse_time(text);
    if (!time) fail_site(place(key), text, "a time as HH:MM:SS");
    value = *time;
  }

  // Returns whether the key exists.
  bool read(const char* key, std::vector<std::string>& value) {
    known_.emplace_back(key);
    const auto* node = table_.get(key);
    if (!node) return false;
    const auto* list = node->as_array();
    if (!list) fail_site(place(key), "something else", "a list of strings");
    for (const auto& item : *list) {
      const auto text = item.value_exact<std::string>();
      if (!text) fail_site(place(key), "something else in it", "a list of strings");
      value.push_back(*text);
    }
    return true;
  }

  // Calls read_one(name, keys) for each table below `key`, in file order.
  template <typename ReadOne>
  void read_tables(const char* key, const ReadOne& read_one) {
    known_.emplace_back(key);
    const auto* node = table_.get(key);
    if (!node) return;
    const auto* tables = node->as_table();
    if (!tables) fail_site(place(key), "something else", fmt::format("tables [{}.NAME]", key));
    std::vector<std::pair<std::string, const toml::table*>> found;
    for (const auto& [name, item] : *tables) {
      const std::string path = fmt::format("{}.{}", key, name.str());
      if (!item.is_table()) fail_site(place(path), "something else", "a table");
      found.emplace_back(name.str(), item.as_table());
    }
    std::ranges::sort(found, {}, [](const auto& entry) { return line_of(*entry.second); });
    for (const auto& [name, table] : found) {
      Keys keys(*table, fmt::format("{}.{}.", key, name), file_);
      read_one(name, keys);
      keys.refuse_others();
    }
  }

  void refuse_others() const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (std::ranges::count(known_, name)) continue;
      throw Error(
          "slurm", ErrorKind::usage,
          {.what = fmt::format("unknown key {}{} ({}:{})", prefix_, name, file_, line_of(node)),
           .hint = fmt::format("did you mean {}?", nearest(name, known_))});
    }
  }

 private:
  static uint32_t line_of(const toml::node& node) { return node.source().begin.line; }

  std::string place(const std::string& key) const {
    const auto* node = table_.get(key);
    return fmt::format("{}{} ({}:{})", prefix_, key, file_, line_of(node ? *node : table_));
  }

  template <typename T>
  void take(const char* key, T& value, const char* type) {
    known_.emplace_back(key);
    const auto* node = table_.get(key);
    if (!node) return;
    const auto found = node->value_exact<T>();
    if (!found) fail_site(place(key), "something else", type);
    value = *found;
  }

  const toml::table& table_;
  std::string prefix_;
  std::string file_;
  std::vector<std::string> known_;
};

Partition read_partition(const std::string& name, Keys& keys) {
  Partition found;
  found.name = name;
  keys.read("cores", found.cores);
  keys.read("gpus", found.gpus);
  keys.read("nodes", found.nodes);
  if (!keys.read("select", found.select)) found.select = {"--partition=" + name};
  keys.read("constraints", found.constraints);
  keys.read("account_suffix", found.account_suffix);
  keys.read("modules", found.modules);
  keys.read("time_default", found.time_default);
  keys.read("time_max", found.time_max);
  keys.read("qos", found.qos);
  if (found.cores < 1) {
    fail_site(fmt::format("cores of partition {}", name), std::to_string(found.cores),
              "an integer >= 1");
  }
  return found;
}

}  // namespace

Site load_site(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  toml::table root;
  try {
    root = toml::parse(text, file.string());
  } catch (const toml::parse_error& problem) {
    fail_site(fmt::format("{}:{} is not TOML", file.string(), problem.source().begin.line),
              std::string(problem.description()), "", "see https://toml.io");
  }
  Site site;
  site.name = file.stem().string();
  Keys keys(root, "", file.string());
  keys.read("hint", site.hint);
  keys.read("module_purge", site.module_purge);
  keys.read("memory_option", site.memory_option);
  keys.read("memory_note", site.memory_note);
  keys.read_tables("partition", [&](const std::string& name, Keys& of_partition) {
    site.partitions.push_back(read_partition(name, of_partition));
  });
  keys.read_tables("qos", [&](const std::string& name, Keys& of_qos) {
    Qos found;
    found.name = name;
    of_qos.read("time_max", found.time_max);
    of_qos.read("gpus_max", found.gpus_max);
    site.qos.push_back(found);
  });
  keys.refuse_others();
  for (const auto& partition : site.partitions) {
    for (const auto& name : partition.qos) {
      if (std::ranges::count(site.qos, name, &Qos::name)) continue;
      fail_site(fmt::format("qos of partition {} in {}", partition.name, file.string()), name,
                fmt::format("a name with a table [qos.{}]", name));
    }
  }
  return site;
}

}  // namespace troika::cluster::slurm
