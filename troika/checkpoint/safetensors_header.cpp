#include "troika/checkpoint/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::checkpoint {

namespace {

using nlohmann::json;

struct DtypeRow {
  std::string_view name;
  at::ScalarType dtype;
};
constexpr std::array kDtypes{DtypeRow{"F64", at::kDouble}, DtypeRow{"F32", at::kFloat},
                             DtypeRow{"F16", at::kHalf},   DtypeRow{"BF16", at::kBFloat16},
                             DtypeRow{"I64", at::kLong},   DtypeRow{"I32", at::kInt},
                             DtypeRow{"I16", at::kShort},  DtypeRow{"I8", at::kChar},
                             DtypeRow{"U8", at::kByte},    DtypeRow{"BOOL", at::kBool}};

constexpr std::string_view kMetadata = "__metadata__";
// LibTorch's operators accept no tensors with more dimensions.
constexpr size_t kMaxDimensions = 64;
// A valid header nests three levels deep; much deeper JSON would exhaust the stack when printed or
// freed.
constexpr size_t kMaxNesting = 8;
// The entry of a tensor has 4 values plus one for each dimension.
constexpr int kMaxValues = 256;

[[noreturn]] void refuse(const std::string& file, const std::string& what, std::string got = {},
                         std::string expected = {}) {
  throw Error("checkpoint", ErrorKind::usage,
              {.what = fmt::format("{}: {}", file, what),
               .got = std::move(got),
               .expected = std::move(expected)});
}

// The JSON value as text for a message, truncated to a readable length.
std::string shown(const json& value) {
  return shortened(value.dump(-1, ' ', true));
}

// Returns the field as a list of non-negative 64-bit integers.
std::vector<int64_t> parse_list(const json& entry, const char* field, const std::string& name,
                                const std::string& file) {
  const json& list = entry.contains(field) ? entry.at(field) : json();
  const auto fits = [](const json& item) {
    return item.is_number_unsigned() && item.get<uint64_t>() <= uint64_t{INT64_MAX};
  };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), fits)) {
    refuse(file, fmt::format("bad {} of tensor `{}`", field, name), shown(list),
           "a list of non-negative integers");
  }
  return list.get<std::vector<int64_t>>();
}

// Returns the bytes of a dense tensor; empty if they or its strides would overflow 64 bits.
std::optional<int64_t> bytes_of(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return std::find(shape.begin(), shape.end(), 0) == shape.end() ? bytes : 0;
}

TensorEntry parse_entry(const std::string& name, const json& entry, int64_t data_bytes,
                        const std::string& file) {
  if (!entry.is_object()) {
    refuse(file, fmt::format("bad entry of tensor `{}`", name), shown(entry), "a JSON object");
  }
  const json& dtype = entry.contains("dtype") ? entry.at("dtype") : json();
  const auto row = std::find_if(kDtypes.begin(), kDtypes.end(),
                                [&](const DtypeRow& known) { return dtype == known.name; });
  if (row == kDtypes.end()) {
    std::vector<std::string_view> known;
    for (const DtypeRow& each : kDtypes) known.push_back(each.name);
    refuse(file, fmt::format("unknown dtype of tensor `{}`", name), shown(dtype),
           fmt::format("one of {}", fmt::join(known, ", ")));
  }
  auto shape = parse_list(entry, "shape", name, file);
  if (shape.size() > kMaxDimensions) {
    refuse(file, fmt::format("tensor `{}` has too many dimensions", name),
           std::to_string(shape.size()), fmt::format("at most {}", kMaxDimensions));
  }
  const auto offsets = parse_list(entry, "data_offsets", name, file);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    refuse(file, fmt::format("bad data_offsets of tensor `{}`", name),
           shown(entry.at("data_offsets")), fmt::format("a range in [0, {}]", data_bytes));
  }
  const auto bytes = bytes_of(shape, row->dtype);
  if (bytes != offsets[1] - offsets[0]) {
    refuse(file, fmt::format("data_offsets of tensor `{}` do not match its shape", name),
           fmt::format("{} bytes", offsets[1] - offsets[0]),
           fmt::format("{} for {} [{}]", bytes ? std::to_string(*bytes) : "more than 2^63",
                       row->name, fmt::join(shape, ", ")));
  }
  return {name, row->dtype, std::move(shape), offsets[0], offsets[1]};
}

// Parses the header incrementally, so time and memory are proportional to its size: with a
// callback, nlohmann's parser revisits all previous members after each.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  HeaderReader(int64_t data_bytes, const std::string& file)
      : data_bytes_(data_bytes), file_(file) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool null() override { return leaf(nullptr); }
  bool boolean(bool value) override { return leaf(value); }
  bool number_integer(int64_t value) override { return leaf(value); }
  bool number_unsigned(uint64_t value) override { return leaf(value); }
  bool number_float(double value, const std::string&) override { return leaf(value); }
  bool string(std::string& value) override { return leaf(std::move(value)); }
  bool binary(json::binary_t& value) override { return leaf(std::move(value)); }

  bool start_object(size_t) override {
    if (open_.empty() && where_ == Where::start) {
      where_ = Where::header;
    } else if (open_.empty() && where_ == Where::header && name_ == kMetadata) {
      where_ = Where::metadata;
    } else {
      open(json::object());
    }
    return true;
  }
  bool end_object() override {
    if (!open_.empty()) return close();
    where_ = where_ == Where::metadata ? Where::header : Where::start;
    return true;
  }
  bool start_array(size_t) override {
    open(json::array());
    return true;
  }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (!open_.empty()) {
      key_ = std::move(name);
      if (open_.back()->contains(key_)) {
        refuse(file_, fmt::format("`{}` is in the entry of `{}` twice", key_, name_));
      }
      return true;
    }
    name_ = std::move(name);
    values_ = 0;
    auto& seen = where_ == Where::header ? names_ : metadata_names_;
    if (!seen.insert(name_).second) {
      refuse(file_, fmt::format("`{}` is in the {} twice", name_,
                                where_ == Where::header ? "header" : "`__metadata__`"));
    }
    if (names_.size() + metadata_names_.size() > kMaxNames) {
      refuse(file_, "too many names in the header", {}, fmt::format("at most {}", kMaxNames));
    }
    return true;
  }

  bool parse_error(size_t, const std::string&, const json::exception& problem) override {
    refuse(file_, "the header is not valid JSON", problem.what());
  }

 private:
  // The object whose members are being read.
  enum class Where { start, header, metadata };

  // Adds a value to the innermost open list or object of the value that is being read.
  json* add(json value) {
    if (++values_ > kMaxValues) {
      const auto where = name_.empty() ? "header" : fmt::format("entry of `{}`", name_);
      refuse(file_, fmt::format("too many values in the {}", where), {},
             fmt::format("at most {}", kMaxValues));
    }
    if (open_.empty()) return &(value_ = std::move(value));
    json& into = *open_.back();
    if (into.is_array()) return &into.emplace_back(std::move(value));
    return &(into[key_] = std::move(value));
  }

  bool leaf(json value) {
    add(std::move(value));
    if (open_.empty()) finish();
    return true;
  }

  void open(json value) {
    open_.push_back(add(std::move(value)));
    if (open_.size() > kMaxNesting) refuse(file_, "the header is nested too deeply");
  }

  bool close() {
    open_.pop_back();
    if (open_.empty()) finish();
    return true;
  }

  // Called when `value_` is complete.
  void finish() {
    if (where_ == Where::start) refuse(file_, "bad header", shown(value_), "a JSON object");
    if (where_ == Where::metadata) {
      if (!value_.is_string()) {
        refuse(file_, fmt::format("bad `__metadata__` value of `{}`", name_), shown(value_),
               "a string");
      }
      header_.metadata[name_] = value_.get<std::string>();
    } else if (name_ == kMetadata) {
      refuse(file_, "bad `__metadata__`", shown(value_), "a JSON object");
    } else {
      header_.entries.push_back(parse_entry(name_, value_, data_bytes_, file_));
    }
  }

  const int64_t data_bytes_;
  const std::string& file_;
  SafetensorsHeader header_;
  Where where_ = Where::start;
  std::unordered_set<std::string> names_, metadata_names_;
  std::string name_;         // of the tensor or metadata entry that is being read
  json value_;               // its value, as far as it has been read
  std::vector<json*> open_;  // the open lists and objects in it, outermost first
  std::string key_;          // of the next value in the innermost object
  int values_ = 0;           // in value_
};

void check_coverage(const std::vector<TensorEntry>& entries, int64_t data_bytes,
                    const std::string& file) {
  std::vector<const TensorEntry*> by_offset;
  for (const TensorEntry& entry : entries) by_offset.push_back(&entry);
  std::sort(by_offset.begin(), by_offset.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  int64_t end = 0;
  for (const TensorEntry* entry : by_offset) {
    if (entry->begin != end) {
      refuse(file,
             fmt::format("the bytes of tensor `{}` {} the tensor before it", entry->name,
                         entry->begin < end ? "overlap" : "leave a gap after"),
             fmt::format("a start at {}", entry->begin), std::to_string(end));
    }
    end = entry->end;
  }
  if (end != data_bytes) {
    refuse(file, "the tensors do not fill the file", fmt::format("{} bytes of data", data_bytes),
           std::to_string(end));
  }
}

}  // namespace

std::optional<std::string_view> dtype_name(at::ScalarType dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) return row.name;
  }
  return std::nullopt;
}

std::optional<at::ScalarType> dtype_named(std::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::string write_header(const SafetensorsHeader& header, const std::string& file) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  auto& fields = object.get_ref<nlohmann::ordered_json::object_t&>();
  if (!header.metadata.empty()) fields.emplace_back(std::string(kMetadata), header.metadata);
  std::unordered_set<std::string_view> seen{kMetadata};
  for (const TensorEntry& entry : header.entries) {
    if (!seen.insert(entry.name).second) {
      refuse(file, "cannot save two tensors of one name", fmt::format("`{}`", entry.name));
    }
    nlohmann::ordered_json description;
    description["dtype"] = *dtype_name(entry.dtype);
    description["shape"] = entry.shape;
    description["data_offsets"] = {entry.begin, entry.end};
    fields.emplace_back(entry.name, std::move(description));
  }
  try {
    std::string text = object.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    return text;
  } catch (const json::exception& problem) {
    refuse(file, "cannot save a name that is not UTF-8", problem.what());
  }
}

SafetensorsHeader parse_header(std::string_view text, int64_t data_bytes, const std::string& file) {
  HeaderReader reader(data_bytes, file);
  json::sax_parse(text, &reader);
  SafetensorsHeader header = reader.take();
  check_coverage(header.entries, data_bytes, file);
  return header;
}

}  // namespace troika::checkpoint
