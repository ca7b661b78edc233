#include "troika/base/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <type_traits>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"

namespace troika::config {

namespace {

template <typename T>
constexpr std::string_view type_name() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, int64_t>) return "an integer";
  if constexpr (std::is_same_v<T, double>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "a string";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "a list of strings";
  if constexpr (std::is_same_v<T, std::vector<int64_t>>) return "a list of integers";
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') {
      out += fmt::format("\\u{:04X}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string show(const Value& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return in_quotes(v);
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          std::vector<std::string> items;
          for (const auto& item : v) items.push_back(in_quotes(item));
          return fmt::format("[{}]", fmt::join(items, ", "));
        } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          return fmt::format("[{}]", fmt::join(v, ", "));
        } else if constexpr (std::is_same_v<T, double>) {
          std::string text = fmt::format("{}", v);
          // TOML distinguishes integers and floats by their spelling.
          if (text.find_first_of(".en") == std::string::npos) text += ".0";
          return text;
        } else {
          return fmt::format("{}", v);
        }
      },
      value);
}

[[noreturn]] void fail(std::string what, std::string got, std::string expected,
                       std::string hint = {}) {
  throw Error("config", ErrorKind::usage,
              {.what = std::move(what),
               .got = std::move(got),
               .expected = std::move(expected),
               .hint = std::move(hint)});
}

template <typename T>
std::optional<T> from_text(std::string_view text) {
  if constexpr (std::is_same_v<T, bool>) {
    if (text == "true" || text == "1") return true;
    if (text == "false" || text == "0") return false;
    return std::nullopt;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return parse_int(text);
  } else if constexpr (std::is_same_v<T, double>) {
    return parse_double(text);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return std::string(text);
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    T items;
    for (const auto& item : text.empty() ? std::vector<std::string>{} : split(text, ',')) {
      const auto integer = parse_int(item);
      if (!integer) return std::nullopt;
      items.push_back(*integer);
    }
    return items;
  } else {
    return text.empty() ? T{} : split(text, ',');
  }
}

template <typename T>
std::optional<T> from_toml(const toml::node& node) {
  if constexpr (std::is_same_v<T, std::vector<std::string>> ||
                std::is_same_v<T, std::vector<int64_t>>) {
    const auto* array = node.as_array();
    if (!array) return std::nullopt;
    T items;
    for (const auto& item : *array) {
      const auto one = item.value_exact<typename T::value_type>();
      if (!one) return std::nullopt;
      items.push_back(*one);
    }
    return items;
  } else {
    auto value = node.value_exact<T>();
    if constexpr (std::is_same_v<T, std::string>) {
      if (const auto* table = node.as_table(); table && table->size() == 1) {
        const auto entry = table->begin();
        if (const auto argument = entry->second.value_exact<std::string>())
          value = fmt::format("{}:{}", entry->first.str(), *argument);
      }
    }
    if constexpr (std::is_same_v<T, double>) {
      if (!value) {
        if (const auto integer = node.value_exact<int64_t>()) value = static_cast<double>(*integer);
      }
    }
    return value;
  }
}

// Keeps the spelling: 1 and 1.0 give different texts.
std::optional<std::string> number_as_text(const toml::node& node) {
  if (const auto integer = node.value_exact<int64_t>()) return show(Value(*integer));
  if (const auto real = node.value_exact<double>()) return show(Value(*real));
  return std::nullopt;
}

std::optional<std::string> flag_as_text(const toml::node& node) {
  const auto flag = node.value_exact<bool>();
  return flag ? std::optional(show(Value(*flag))) : std::nullopt;
}

std::string show_node(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& n) { out << n; });
  return out.str();
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Suggests a name for a string, or for a list's first entry, that is not in rule.names. Empty if
// there is nothing to suggest.
std::string nearest_name(const Value& value, const Rule& rule) {
  const auto& names = rule.names;
  const auto* list = std::get_if<std::vector<std::string>>(&value);
  const auto* text = std::get_if<std::string>(&value);
  if (list) {
    const auto unknown = std::find_if(list->begin(), list->end(), [&](const std::string& name) {
      return !contains(names, name);
    });
    text = unknown == list->end() ? nullptr : &*unknown;
  }
  if (!text || names.empty()) return "";
  return fmt::format("did you mean {}?", meant_name(*text, names, rule.known_as));
}

// Returns the TOML file in the same folder whose name is nearest to that of `file`; empty if there
// is none.
std::string nearest_file(const std::filesystem::path& file) {
  const auto folder = file.parent_path();
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder.empty() ? "." : folder, none)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().filename().string());
  }
  return names.empty() ? "" : (folder / nearest(file.filename().string(), names)).string();
}

std::pair<std::string, std::string> section_and_name(const std::string& key) {
  const size_t dot = key.find('.');
  return {key.substr(0, dot), key.substr(dot + 1)};
}

}  // namespace

void Table::add_row(Row row) {
  TROIKA_CHECK(std::count(row.key.begin(), row.key.end(), '.') == 1,
               "a key is section.name: " + row.key);
  rows_.push_back(std::move(row));
}

void Table::add_alias(std::string alias, std::string key) {
  find(key, "");
  aliases_.emplace(std::move(alias), std::move(key));
}

void Table::add_known_as(std::string name, std::string key) {
  find(key, "");
  known_as_.emplace(std::move(name), std::move(key));
}

std::string Table::known_key(std::string_view typed) const {
  auto name = lower_case(typed.substr(typed.rfind('.') + 1));
  std::replace(name.begin(), name.end(), '-', '_');
  const auto known = known_as_.find(name);
  return known == known_as_.end() ? "" : known->second;
}

const Table::Row& Table::find(std::string_view key, const std::string& where) const {
  const auto alias = aliases_.find(key);
  const std::string_view name = alias == aliases_.end() ? key : alias->second;
  const auto row =
      std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.key == name; });
  if (row != rows_.end()) return *row;
  std::vector<std::string> keys;
  for (const auto& r : rows_) keys.push_back(r.key);
  const auto known = known_key(key);
  throw Error(
      "config", ErrorKind::usage,
      {.what = fmt::format("unknown key {}{}", key, where),
       .hint = fmt::format("did you mean {}?", known.empty() ? nearest(key, keys) : known)});
}

void Table::check_rule(const Row& row, const Value& value, const std::string& where) {
  if (row.rule.holds && !row.rule.holds(value)) {
    fail(row.key + where, show(value), row.rule.text, nearest_name(value, row.rule));
  }
}

void Table::check(const Table& defaults) const {
  for (const auto& row : rows_) {
    const auto value = value_of(row);
    const auto other = std::find_if(defaults.rows_.begin(), defaults.rows_.end(),
                                    [&](const Row& each) { return each.key == row.key; });
    if (other == defaults.rows_.end() || value_of(*other) != value) check_rule(row, value, "");
  }
}

void Table::store(const Row& row, Value value, const std::string& where) {
  check_rule(row, value, where);
  std::visit(
      [&](auto* target) { *target = std::get<std::remove_pointer_t<decltype(target)>>(value); },
      row.target);
}

void Table::load(const std::filesystem::path& toml_file) {
  std::error_code none;
  if (!std::filesystem::exists(toml_file, none)) {
    const auto meant = nearest_file(toml_file);
    fail("the configuration does not exist", toml_file.string(), "a file in TOML",
         meant.empty() ? "" : fmt::format("did you mean {}?", meant));
  }
  parse(read_file(toml_file), toml_file.string());
}

void Table::parse(std::string_view text, std::string_view name) {
  toml::table root;
  try {
    root = toml::parse(text, name);
  } catch (const toml::parse_error& problem) {
    fail(fmt::format("{}:{} is not TOML", name, problem.source().begin.line),
         std::string(problem.description()), "", "see https://toml.io");
  }
  for (const auto& [section, node] : root) {
    const auto* table = node.as_table();
    if (!table) {
      fail(fmt::format("{} ({}:{})", section.str(), name, node.source().begin.line),
           show_node(node), "a [section] of keys");
    }
    for (const auto& [key, item] : *table) {
      const auto where = fmt::format(" ({}:{})", name, item.source().begin.line);
      const Row& row = find(fmt::format("{}.{}", section.str(), key.str()), where);
      std::visit(
          [&, &value_node = item](auto* target) {
            using T = std::remove_pointer_t<decltype(target)>;
            auto value = from_toml<T>(value_node);
            if constexpr (std::is_same_v<T, std::string>) {
              if (!value && row.rule.takes_numbers) value = number_as_text(value_node);
              if (!value && contains(row.rule.names, "true")) value = flag_as_text(value_node);
            }
            if constexpr (std::is_same_v<T, int64_t>) {
              if (!value && row.rule.takes_flags) value = value_node.value_exact<bool>();
            }
            if (!value) {
              fail(row.key + where, show_node(value_node), std::string(type_name<T>()));
            }
            store(row, Value(std::move(*value)), where);
          },
          row.target);
    }
  }
}

void Table::set(std::string_view key, std::string_view text) {
  const Row& row = find(key, "");
  std::visit(
      [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        auto value = from_text<T>(text);
        if constexpr (std::is_same_v<T, int64_t>) {
          if (!value && row.rule.takes_flags) value = from_text<bool>(text);
        }
        if (!value) fail(row.key, in_quotes(text), std::string(type_name<T>()));
        store(row, Value(std::move(*value)), "");
      },
      row.target);
}

void Table::set_argument(std::string_view argument) {
  if (argument == "--help" || argument == "-h") {
    std::set<std::string> sections;
    for (const auto& row : rows_) sections.insert(section_and_name(row.key).first);
    fail("argument", std::string(argument), "--section.name=value",
         fmt::format("sections are {}", fmt::join(sections, ", ")));
  }
  const size_t equals = argument.find('=');
  const bool is_option = argument.starts_with("--");
  if (is_option && equals == std::string_view::npos) find(argument.substr(2), "");
  if (!is_option || equals == std::string_view::npos) {
    fail("argument", std::string(argument), "--section.name=value");
  }
  set(argument.substr(2, equals - 2), argument.substr(equals + 1));
}

Value Table::value_of(const Row& row) {
  return std::visit([](const auto* target) { return Value(*target); }, row.target);
}

std::string Table::to_toml() const {
  std::string out;
  std::string open_section;
  for (const auto& row : rows_) {
    const auto [section, name] = section_and_name(row.key);
    if (section != open_section) {
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
      open_section = section;
    }
    out += fmt::format("{} = {}  # {}\n", name, show(value_of(row)), row.help);
  }
  return out;
}

std::vector<Setting> Table::changed() const {
  std::vector<Setting> settings;
  for (const auto& row : rows_) {
    auto value = show(value_of(row)), initial = show(row.initial);
    if (value == initial) continue;  // compared as text, where NaN equals NaN
    settings.push_back({row.key, std::move(value), std::move(initial), row.help});
  }
  return settings;
}

std::string Table::to_markdown() const {
  std::string out;
  std::string open_section;
  for (const auto& row : rows_) {
    const auto [section, name] = section_and_name(row.key);
    if (section != open_section) {
      out += fmt::format("{}## `[{}]`\n\n| key | default | value | meaning |\n|---|---|---|---|\n",
                         out.empty() ? "" : "\n", section);
      open_section = section;
    }
    const std::string type = std::visit(
        [](const auto* target) {
          return std::string(type_name<std::remove_cvref_t<decltype(*target)>>());
        },
        row.target);
    out += fmt::format("| `{}` | `{}` | {} | {} |\n", name, show(row.initial),
                       row.rule.text.empty() ? type : row.rule.text, row.help);
  }
  return out;
}

std::vector<std::pair<std::string, std::vector<std::string>>> Table::choices() const {
  std::vector<std::pair<std::string, std::vector<std::string>>> all;
  for (const auto& row : rows_) {
    const bool is_flag = std::holds_alternative<bool*>(row.target);
    all.emplace_back(row.key, is_flag ? std::vector<std::string>{"true", "false"} : row.rule.names);
  }
  return all;
}

}  // namespace troika::config
