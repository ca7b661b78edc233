// JSON values with their line numbers, for error messages.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troika::layout {

struct LocatedJson {
  enum class Kind { null, boolean, number, text, list, object };

  Kind kind = Kind::null;
  int line = 1;       // on which the value begins, or ends if it is a number or text
  double number = 0;  // a boolean is 0 or 1
  std::string text = {};
  std::vector<LocatedJson> items = {};                            // of a list
  std::vector<std::pair<std::string, LocatedJson>> members = {};  // of an object, in file order

  // Returns the member with this key, or a null pointer. The object owns it.
  const LocatedJson* find(std::string_view key) const;
};

// Parses JSON. `name` is the file's name, for errors. Throws Error(usage) with the line for text
// that is not JSON and for a key that occurs twice in an object.
LocatedJson parse_located_json(std::string_view text, std::string_view name);

// Sums and products of several numbers up to this one are finite.
inline constexpr double kMostNumber = 1e18;

// A value of a file with its path in the file, such as blocks[3].name. The file's name and the
// value must outlive this object.
class JsonField {
 public:
  JsonField(const LocatedJson& value, std::string_view file, std::string path = {})
      : value_(value), file_(file), path_(std::move(path)) {}

  // Throws Error(usage), naming the nearest known key, if this is not an object of known keys.
  void require_keys(const std::vector<std::string>& known) const;
  bool has(std::string_view key) const { return value_.find(key) != nullptr; }
  // These throw Error(usage) if the key is missing or its value has the wrong type.
  JsonField member(std::string_view key) const;
  std::vector<JsonField> items(std::string_view key) const;
  std::vector<JsonField> items() const;
  std::string text(std::string_view key) const { return member(key).text(); }
  std::string text() const;
  bool boolean() const;
  // Returns a number; throws Error(usage) if it is below `least`, or above `most` or kMostNumber.
  double number(std::string_view key, double least = 0) const { return member(key).number(least); }
  double number(double least) const;
  double number(double least, double most) const;
  double number_or(std::string_view key, double otherwise, double least = 0) const {
    return has(key) ? number(key, least) : otherwise;
  }

  // Throws Error(usage): `[layout] PATH (FILE:LINE); got X, expected Y (hint)`.
  [[noreturn]] void fail(std::string got, std::string expected, std::string hint = {}) const;
  const std::string& path() const { return path_; }

 private:
  std::string got() const;
  std::string path_of(std::string_view key) const;

  const LocatedJson& value_;
  std::string_view file_;
  std::string path_;
};

}  // namespace troika::layout
