// The typed table of options: one row drives parsing, defaults, validation, help and docs.
//
// A row binds a key `section.name` to a variable of the caller, whose value at that moment is the
// default. Files are TOML with one level of sections; the command line overrides them with
// `--section.name=value`. A text `name:argument` may stand in a file as `{name = "argument"}` too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troika::config {

using Value = std::variant<bool, int64_t, double, std::string, std::vector<std::string>,
                           std::vector<int64_t>>;

// A condition on a value beyond its type. `text` completes "expected ...".
struct Rule {
  std::string text;
  std::function<bool(const Value&)> holds;
  std::vector<std::string> names = {};  // of a text or a list: all there are, to name the nearest
  std::map<std::string, std::string> known_as = {};  // what other programs call some of the names
  // For a text: files may give it as a number too, which keeps its form (1 or 1.0).
  bool takes_numbers = false;
  // For an integer: true and false mean 1 and 0.
  bool takes_flags = false;
};

Rule at_least(int64_t low);
Rule at_least(double low);
Rule above(double low);
Rule between(int64_t low, int64_t high);      // low <= value <= high
Rule between(double low, double high);        // low <= value <= high
Rule from_to_below(double low, double high);  // low <= value < high
Rule above_to(double low, double high);       // low < value <= high
// From `low` to a thousand million. Beyond that a slip is likelier than a wish, and sums of counts
// would overflow.
Rule count_from(int64_t low);
// The same from 0 on, which may be given as true (1) and false (0), too.
Rule count_or_flag();
// For a text, which is looked at where what it is a share of is known.
Rule number_or_share();
// `known_as`: other programs' spellings, in lower case, with the name here that an error hints at.
Rule one_of(std::vector<std::string> names, std::map<std::string, std::string> known_as = {});
// The same, or empty.
Rule one_of_or_none(std::vector<std::string> names);
// The name that an error hints at for `text`, which is none of them: the one that `known_as` has
// for it, or the nearest.
std::string meant_name(const std::string& text, const std::vector<std::string>& names,
                       const std::map<std::string, std::string>& known_as);
// For a list: of these names any number, each at most once.
Rule some_of(std::vector<std::string> names);

class Table {
 public:
  // `variable` must outlive the table; T is an alternative of Value. A default need not satisfy its
  // rule: rules hold for what a user sets.
  template <typename T>
  void add(std::string key, T* variable, std::string help, Rule rule = {}) {
    add_row({std::move(key), variable, Value(*variable), std::move(help), std::move(rule)});
  }

  // Another name that sets `key`, which has been added. No text of this table has it.
  void add_alias(std::string alias, std::string key);
  // A name that other programs have for `key`, without a section, in lower case with `_` between
  // words ("learning_rate"): errors hint at `key` for it.
  void add_known_as(std::string name, std::string key);

  // Each throws Error(room `config`, usage) for an unknown key (naming the nearest known one), a
  // wrong type or a broken rule; errors from a file name its line.
  void load(const std::filesystem::path& toml_file);
  void parse(std::string_view toml, std::string_view name);
  // A value as typed on a command line; lists are separated by commas.
  void set(std::string_view key, std::string_view text);
  // One argument `--section.name=value`.
  void set_argument(std::string_view argument);

  // For values that a program has set: throws as set() does where one that is not that of
  // `defaults` breaks its rule.
  void check(const Table& defaults) const;

  // The present values as TOML that `parse` reads back, each row with its help as a comment.
  std::string to_toml() const;
  // The rows that no longer have their default, in their order. Values are texts as in TOML.
  struct Setting {
    std::string key;
    std::string value;
    std::string initial;
    std::string help;
  };
  std::vector<Setting> changed() const;
  // A table of all options with type, default and meaning, a section each.
  std::string to_markdown() const;
  // The key that an error hints at for `typed`, whatever its section: that which other programs
  // call so, or empty.
  std::string known_key(std::string_view typed) const;
  // The keys in their order, each with the values that it can only have; none where it has others.
  std::vector<std::pair<std::string, std::vector<std::string>>> choices() const;

 private:
  using Target = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*,
                              std::vector<int64_t>*>;
  struct Row {
    std::string key;
    Target target;
    Value initial;
    std::string help;
    Rule rule;
  };

  void add_row(Row row);
  const Row& find(std::string_view key, const std::string& where) const;
  static void check_rule(const Row& row, const Value& value, const std::string& where);
  static void store(const Row& row, Value value, const std::string& where);
  static Value value_of(const Row& row);

  std::vector<Row> rows_;
  std::map<std::string, std::string, std::less<>> aliases_;
  std::map<std::string, std::string, std::less<>> known_as_;
};

}  // namespace troika::config
