// The typed table of options. One row drives parsing, defaults, validation, help and docs.
//
// A row binds a key `section.name` to a variable of the caller. The variable's value when the row
// is added is the default. Files are TOML with one level of sections. The command line overrides
// files with `--section.name=value`. Files may also write a string `name:argument` as
// `{name = "argument"}`.
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

// A condition on a value beyond its type. `text` completes an error's "expected ...".
struct Rule {
  std::string text;
  std::function<bool(const Value&)> holds;
  // For a string or a list of strings: all allowed names, to suggest the nearest.
  std::vector<std::string> names = {};
  // Maps other programs' spellings to entries of `names`, for suggestions.
  std::map<std::string, std::string> known_as = {};
  // For a string: a file may also give a number, whose spelling is kept (1 or 1.0).
  bool takes_numbers = false;
  // For an integer: true and false are accepted as 1 and 0.
  bool takes_flags = false;
};

Rule at_least(int64_t low);
Rule at_least(double low);
Rule above(double low);
Rule between(int64_t low, int64_t high);      // low <= value <= high
Rule between(double low, double high);        // low <= value <= high
Rule from_to_below(double low, double high);  // low <= value < high
Rule above_to(double low, double high);       // low < value <= high
// An integer from `low` to 10^9. Larger values are likely mistakes and could overflow sums of
// counts.
Rule count_from(int64_t low);
// Like count_from(0), but also accepts true (1) and false (0).
Rule count_or_flag();
// For a string that is a number ("10") or a share ("0.1"). The caller checks the value where the
// total is known.
Rule number_or_share();
// For a string that must be one of `names`. `known_as` maps other programs' spellings, in lower
// case, to the name that an error suggests.
Rule one_of(std::vector<std::string> names, std::map<std::string, std::string> known_as = {});
// Like one_of(), but also accepts the empty string.
Rule one_of_or_none(std::vector<std::string> names);
// The name that an error suggests for the unknown `text`: its entry in `known_as`, or else the
// nearest of `names`.
std::string meant_name(const std::string& text, const std::vector<std::string>& names,
                       const std::map<std::string, std::string>& known_as);
// For a list of strings: any subset of `names`, without repetition.
Rule some_of(std::vector<std::string> names);

// An option that differs from its default. Both values are formatted as TOML.
struct Setting {
  std::string key;
  std::string value;
  std::string initial;
  std::string help;
};

class Table {
 public:
  // Adds a row. `variable` must outlive the table; T is an alternative of Value. The default may
  // break the rule: rules apply only to values that a user sets.
  template <typename T>
  void add(std::string key, T* variable, std::string help, Rule rule = {}) {
    add_row({std::move(key), variable, Value(*variable), std::move(help), std::move(rule)});
  }

  // Adds a second name for `key`, which must exist. Files and the command line accept the alias;
  // to_toml() and to_markdown() do not list it.
  void add_alias(std::string alias, std::string key);
  // Records another program's name for `key`, without a section, in lower case with `_` between
  // words ("learning_rate"). An error about this name suggests `key`.
  void add_known_as(std::string name, std::string key);

  // load(), parse(), set() and set_argument() throw Error(config, usage) for an unknown key (naming
  // the nearest one), a wrong type or a broken rule. Errors about a file name the line.
  void load(const std::filesystem::path& toml_file);
  void parse(std::string_view toml, std::string_view name);
  // Sets a value from command-line text. List items are separated by commas.
  void set(std::string_view key, std::string_view text);
  // Parses one argument `--section.name=value`.
  void set_argument(std::string_view argument);

  // Checks values that a program set directly. Throws as set() does when a value differs from that
  // in `defaults` and breaks its rule.
  void check(const Table& defaults) const;

  // Returns the current values as TOML that parse() accepts, each with its help as a comment.
  std::string to_toml() const;
  // Returns the rows whose value differs from the default, in order.
  std::vector<Setting> changed() const;
  // Returns Markdown tables, one per section, of all options with default, type and meaning.
  std::string to_markdown() const;
  // Returns the key that add_known_as() recorded for the name part of `typed`; its section is
  // ignored. Empty if there is none.
  std::string known_key(std::string_view typed) const;
  // Returns every key, in order, with the list of its allowed values. The list is empty for a key
  // without a fixed set of values.
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
