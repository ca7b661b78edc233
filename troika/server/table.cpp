#include "troika/server/table.h"

#include <fmt/format.h>

#include "troika/base/checksum.h"
#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/base/text.h"

namespace troika::server {

namespace {

using Wide = unsigned __int128;

[[noreturn]] void refuse(std::string_view text, const std::string& word) {
  throw Error("server", ErrorKind::usage,
              {.what = fmt::format("a table's text does not parse: `{}`", text),
               .got = word,
               .expected = "NAME float32|float64 keys=N width=N initial=X spread=X seed=N "
                           "per_push|per_step UPDATE"});
}

}  // namespace

size_t size_of(ValueType type) {
  return type == ValueType::float32 ? sizeof(float) : sizeof(double);
}

std::string to_text(const TableSpec& spec) {
  std::string bounds;
  if (spec.hash > 0) bounds += fmt::format(" hash={}", spec.hash);
  if (spec.admit != 1) bounds += fmt::format(" admit={}", spec.admit);
  if (spec.rows > 0) bounds += fmt::format(" rows={}", spec.rows);
  return fmt::format("{} {} keys={} width={} initial={} spread={} seed={}{} {} {}", spec.name,
                     spec.type == ValueType::float32 ? "float32" : "float64", spec.keys, spec.width,
                     spec.initial, spec.spread, spec.seed, bounds,
                     spec.application == Application::per_push ? "per_push" : "per_step",
                     to_text(spec.update));
}

TableSpec parse_table(std::string_view text) {
  const auto words = split(trim(text), ' ');
  if (words.size() < 9) refuse(text, fmt::format("{} words", words.size()));
  TableSpec spec;
  spec.name = words[0];
  if (words[1] != "float32" && words[1] != "float64") refuse(text, words[1]);
  spec.type = words[1] == "float32" ? ValueType::float32 : ValueType::float64;
  const auto value = [&](size_t word, std::string_view name) {
    if (!words[word].starts_with(std::string(name) + "=")) refuse(text, words[word]);
    return words[word].substr(name.size() + 1);
  };
  const auto integer = [&](size_t word, std::string_view name, uint64_t most) {
    const auto digits = value(word, name);
    uint64_t number = 0;
    if (digits.empty() || digits.size() > 20) refuse(text, words[word]);
    for (const char c : digits) {
      const Wide next = Wide(number) * 10 + static_cast<unsigned>(c - '0');
      if (c < '0' || c > '9' || next > most) refuse(text, words[word]);
      number = static_cast<uint64_t>(next);
    }
    return number;
  };
  const auto real = [&](size_t word, std::string_view name) {
    const auto number = parse_double(value(word, name));
    if (!number) refuse(text, words[word]);
    return *number;
  };
  spec.keys = integer(2, "keys", ~uint64_t{0});
  spec.width = static_cast<uint32_t>(integer(3, "width", ~uint32_t{0}));
  spec.initial = real(4, "initial");
  spec.spread = real(5, "spread");
  spec.seed = integer(6, "seed", ~uint64_t{0});
  size_t word = 7;
  if (words[word].starts_with("hash=")) spec.hash = integer(word++, "hash", ~uint64_t{0});
  if (words[word].starts_with("admit=")) {
    spec.admit = static_cast<uint32_t>(integer(word++, "admit", ~uint32_t{0}));
  }
  if (words[word].starts_with("rows=")) spec.rows = integer(word++, "rows", ~uint64_t{0});
  if (words.size() < word + 2) refuse(text, fmt::format("{} words", words.size()));
  if (words[word] != "per_push" && words[word] != "per_step") refuse(text, words[word]);
  spec.application = words[word] == "per_push" ? Application::per_push : Application::per_step;
  const auto update = words.begin() + static_cast<ptrdiff_t>(word) + 1;
  spec.update = parse_update(fmt::format("{}", fmt::join(update, words.end(), " ")));
  return spec;
}

void check_table(const TableSpec& spec) {
  const auto require = [&](bool holds, const std::string& what, const std::string& got,
                           const std::string& expected) {
    if (holds) return;
    throw Error("server", ErrorKind::usage,
                {.what = what + " of table " + spec.name, .got = got, .expected = expected});
  };
  require(!spec.name.empty() && spec.name.find_first_of(" \t\n") == std::string::npos, "the name",
          "`" + spec.name + "`", "a word");
  require(spec.admit >= 1 && spec.admit <= 255, "admit", std::to_string(spec.admit), "1 to 255");
  const bool has_bounds = spec.hash > 0 || spec.rows > 0 || spec.admit > 1;
  require(!has_bounds || (spec.keys == 0 && spec.width > 0), "hash, admit and rows",
          fmt::format("keys={} width={}", spec.keys, spec.width), "keys=0 and a width");
  require(spec.hash == 0 || (spec.rows == 0 && spec.admit == 1), "hash with admit or rows",
          to_text(spec), "one of them: all rows of a table with hash exist");
}

uint64_t fixed_rows(const TableSpec& spec) {
  return spec.keys > 0 ? spec.keys : spec.hash;
}

Key row_of(const TableSpec& spec, Key key) {
  return spec.hash > 0 ? mix(key) % spec.hash : key;
}

uint32_t range_of(const TableSpec& spec, Key key, uint32_t ranges) {
  if (const auto rows = fixed_rows(spec); rows > 0) {
    return static_cast<uint32_t>(Wide(row_of(spec, key)) * ranges / rows);
  }
  return static_cast<uint32_t>(Wide(mix(key)) * ranges >> 64);
}

KeySpan keys_of(const TableSpec& spec, uint32_t range, uint32_t ranges) {
  const auto begin = [&](uint32_t r) {
    return static_cast<Key>((Wide(r) * fixed_rows(spec) + ranges - 1) / ranges);
  };
  return {begin(range), begin(range + 1) - begin(range)};
}

uint64_t state_width(const TableSpec& spec) {
  const auto states = states_of(spec.update);
  if (!states || spec.width == 0) return 0;
  return uint64_t{spec.width} * (1 + static_cast<uint64_t>(*states)) +
         sizeof(uint64_t) / size_of(spec.type);
}

double initial_value(const TableSpec& spec, Key key, uint32_t index) {
  if (spec.spread == 0) return spec.initial;
  const uint64_t bits = mix(spec.seed ^ fingerprint(spec.name), key, index);
  return spec.initial + spec.spread * (static_cast<double>(bits >> 11) * 0x1p-52 - 1);
}

}  // namespace troika::server
