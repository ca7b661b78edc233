// Writes and reads the bytes of messages and copies: little-endian numbers, and texts and arrays
// with their lengths. Internal to the room.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "troika/base/error.h"

namespace troika::server {

// Appends to a text. Arrays begin at a multiple of 8 bytes, so that a Reader can return them in
// place.
class Writer {
 public:
  explicit Writer(std::string& bytes) : bytes_(bytes) {}

  template <typename Number>
  void number(Number value) {
    static_assert(std::is_arithmetic_v<Number> || std::is_enum_v<Number>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void text(std::string_view value) { array(std::span(value.data(), value.size())); }
  template <typename Number>
  void array(std::span<const Number> values) {
    array_head(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  // Appends what stands before the `count` numbers of an array.
  void array_head(size_t count) {
    number<uint64_t>(count);
    pad();
  }
  // Appends zeros up to a multiple of 8 bytes.
  void pad() { bytes_.resize((bytes_.size() + 7) / 8 * 8); }
  // Appends an array of `count` zeros, and returns it to be filled in. The next call invalidates
  // it.
  template <typename Number>
  std::span<Number> room(size_t count) {
    array_head(count);
    const size_t at = bytes_.size();
    bytes_.resize(at + count * sizeof(Number));
    return {reinterpret_cast<Number*>(bytes_.data() + at), count};
  }

 private:
  std::string& bytes_;
};

// Reads what a Writer wrote, in the same order. Throws Error(server, failure) if the bytes end
// early. The bytes must outlive it and the spans that it returns, and begin at a multiple of 8.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Number>
  Number number() {
    static_assert(std::is_arithmetic_v<Number> || std::is_enum_v<Number>);
    Number value;
    std::memcpy(&value, next(sizeof(value)), sizeof(value));
    return value;
  }
  std::string text() { return std::string(view()); }
  std::string_view view() {
    const auto chars = array<char>();
    return {chars.data(), chars.size()};
  }
  template <typename Number>
  std::span<const Number> array() {
    const auto count = number<uint64_t>();
    skip_pad();
    if (count > (bytes_.size() - at_) / sizeof(Number)) fail();
    return {reinterpret_cast<const Number*>(next(count * sizeof(Number))), count};
  }
  // Skips what Writer::pad() appended.
  void skip_pad() { next((8 - at_ % 8) % 8); }
  bool is_over() const { return at_ == bytes_.size(); }

 private:
  const char* next(size_t size) {
    if (size > bytes_.size() - at_) fail();
    at_ += size;
    return bytes_.data() + at_ - size;
  }
  [[noreturn]] void fail() const {
    throw Error("server", ErrorKind::failure,
                {.what = "a message ends early", .got = std::to_string(bytes_.size()) + " bytes"});
  }

  const std::string_view bytes_;
  size_t at_ = 0;
};

}  // namespace troika::server
