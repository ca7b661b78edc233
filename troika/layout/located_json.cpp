#include "troika/layout/located_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>

#include "troika/base/text.h"
#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

using JsonKind = LocatedJson::Kind;

// A LocatedJson is destroyed recursively.
constexpr size_t kMostDepth = 64;

// An iterator over the text that records how far the parser has read.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** read;

  reference operator*() const { return *at; }
  Cursor& operator++() {
    *read = ++at;
    return *this;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }
};

// Receives the parser's events.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view text, std::string_view name) : name_(name), counted_(text.data()) {
    read_ = counted_;
  }
  const char** read() { return &read_; }
  LocatedJson take() { return std::move(root_); }

  bool null() override { return add({.kind = JsonKind::null}); }
  bool boolean(bool value) override {
    return add({.kind = JsonKind::boolean, .number = value ? 1.0 : 0.0});
  }
  bool number_integer(number_integer_t value) override {
    return add({.kind = JsonKind::number, .number = static_cast<double>(value)});
  }
  bool number_unsigned(number_unsigned_t value) override {
    return add({.kind = JsonKind::number, .number = static_cast<double>(value)});
  }
  bool number_float(number_float_t value, const string_t&) override {
    return add({.kind = JsonKind::number, .number = value});
  }
  bool string(string_t& value) override { return add({.kind = JsonKind::text, .text = value}); }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(JsonKind::object); }
  bool start_array(std::size_t) override { return open(JsonKind::list); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    if (open_.back()->find(value)) {
      refuse(fmt::format("{} ({}:{})", value, name_, line()), "the key a second time", "it once");
    }
    key_ = value;
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& problem) override {
    const std::string text = problem.what();
    const auto colon = text.rfind(": ");
    refuse(fmt::format("{}:{} is not JSON", name_, line()),
           colon == std::string::npos ? text : text.substr(colon + 2), "");
  }

 private:
  // The parser has read at most one character beyond the current value.
  int line() {
    for (; counted_ + 1 < read_; ++counted_) line_ += *counted_ == '\n' ? 1 : 0;
    return line_;
  }
  LocatedJson* place(LocatedJson value) {
    value.line = line();
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    auto& outer = *open_.back();
    if (outer.kind == JsonKind::list) return &outer.items.emplace_back(std::move(value));
    return &outer.members.emplace_back(key_, std::move(value)).second;
  }
  bool add(LocatedJson value) { return place(std::move(value)) != nullptr; }
  bool open(JsonKind kind) {
    if (open_.size() == kMostDepth) {
      refuse(fmt::format("{}:{}", name_, line()), "values nested more deeply",
             fmt::format("at most {} levels", kMostDepth));
    }
    open_.push_back(place({.kind = kind}));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view name_;
  const char* read_ = nullptr;
  const char* counted_ = nullptr;
  int line_ = 1;
  LocatedJson root_;
  // Pointers stay valid, because an outer value does not grow while an inner value is open.
  std::vector<LocatedJson*> open_;
  std::string key_;
};

}  // namespace

const LocatedJson* LocatedJson::find(std::string_view key) const {
  const auto found = std::ranges::find(members, key, &std::pair<std::string, LocatedJson>::first);
  return found == members.end() ? nullptr : &found->second;
}

LocatedJson parse_located_json(std::string_view text, std::string_view name) {
  Builder builder(text, name);
  const char* end = text.data() + text.size();
  nlohmann::json::sax_parse(Cursor{text.data(), builder.read()}, Cursor{end, builder.read()},
                            &builder);
  return builder.take();
}

void JsonField::require_keys(const std::vector<std::string>& known) const {
  if (value_.kind != JsonKind::object) fail(got(), "an object of keys");
  for (const auto& [key, value] : value_.members) {
    if (std::ranges::count(known, key) > 0) continue;
    JsonField(value, file_, path_of(key))
        .fail("an unknown key", fmt::format("one of {}", fmt::join(known, ", ")),
              fmt::format("did you mean {}?", nearest(key, known)));
  }
}

JsonField JsonField::member(std::string_view key) const {
  const auto* value = value_.find(key);
  if (!value) JsonField(value_, file_, path_of(key)).fail("no such key", "one");
  return {*value, file_, path_of(key)};
}

std::vector<JsonField> JsonField::items(std::string_view key) const {
  return member(key).items();
}

std::vector<JsonField> JsonField::items() const {
  if (value_.kind != JsonKind::list) fail(got(), "a list");
  std::vector<JsonField> fields;
  for (size_t i = 0; i < value_.items.size(); ++i) {
    fields.emplace_back(value_.items[i], file_, fmt::format("{}[{}]", path_, i));
  }
  return fields;
}

std::string JsonField::text() const {
  if (value_.kind != JsonKind::text || value_.text.empty()) fail(got(), "a text");
  return value_.text;
}

bool JsonField::boolean() const {
  if (value_.kind != JsonKind::boolean) fail(got(), "true or false");
  return value_.number > 0;
}

double JsonField::number(double least) const {
  return number(least, kMostNumber);
}

double JsonField::number(double least, double most) const {
  const bool is_number = value_.kind == JsonKind::number && std::isfinite(value_.number);
  if (!is_number || value_.number < least) fail(got(), fmt::format("a number >= {}", least));
  if (value_.number > most) fail(got(), fmt::format("at most {:g}", most));
  return value_.number;
}

void JsonField::fail(std::string got, std::string expected, std::string hint) const {
  refuse(fmt::format("{} ({}:{})", path_.empty() ? "the file" : path_, file_, value_.line),
         std::move(got), std::move(expected), std::move(hint));
}

std::string JsonField::got() const {
  switch (value_.kind) {
    case JsonKind::null:
      return "null";
    case JsonKind::boolean:
      return value_.number > 0 ? "true" : "false";
    case JsonKind::number:
      return fmt::format("{}", value_.number);
    case JsonKind::text:
      return fmt::format("\"{}\"", value_.text);
    case JsonKind::list:
      return "a list";
    case JsonKind::object:
      return "an object";
  }
  return {};
}

std::string JsonField::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

}  // namespace troika::layout
