#include "troika/data/idx.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "troika/base/error.h"
#include "troika/data/fail.h"
#include "troika/data/gzip.h"

namespace troika::data {

namespace {

// The third byte of the magic number is the type (8: unsigned byte), the fourth is the number of
// sizes.
constexpr uint32_t kImagesMagic = 0x00000803;
constexpr uint32_t kLabelsMagic = 0x00000801;
// Limits the product of the sizes in a corrupt header to 64 bits.
constexpr int64_t kLargestSide = 1 << 14;

struct IdxFile {
  std::string name;
  std::vector<int64_t> sizes;
  std::vector<uint8_t> values;
};

uint32_t big_endian(const std::string& content, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(content[at + i]);
  return value;
}

IdxFile read(const std::filesystem::path& folder, const std::string& name, uint32_t magic) {
  auto path = folder / name;
  if (!std::filesystem::exists(path)) path += ".gz";
  if (!std::filesystem::exists(path)) {
    throw Error("data", ErrorKind::usage,
                {.what = fmt::format("no {} or {}.gz in {}", name, name, folder.string())});
  }
  const std::string content = read_maybe_gzip(path);
  IdxFile file{.name = path.string(), .sizes = {}, .values = {}};
  const size_t dims = magic & 0xff;
  const size_t header = 4 * (1 + dims);
  if (content.size() < header) {
    fail(fmt::format("{} is too short for a header", file.name),
         fmt::format("{} bytes", content.size()), fmt::format(">= {}", header));
  }
  if (big_endian(content, 0) != magic) {
    fail(fmt::format("magic number of {}", file.name),
         fmt::format("{:#010x}", big_endian(content, 0)), fmt::format("{:#010x}", magic));
  }
  auto expected = static_cast<int64_t>(header);
  int64_t values = 1;
  for (size_t d = 0; d < dims; ++d) {
    const int64_t size = big_endian(content, 4 * (1 + d));
    if (d > 0 && (size == 0 || size > kLargestSide)) {
      fail(fmt::format("height or width in {}", file.name), std::to_string(size),
           fmt::format("1 to {}", kLargestSide));
    }
    file.sizes.push_back(size);
    values *= size;
  }
  expected += values;
  if (static_cast<int64_t>(content.size()) != expected) {
    fail(fmt::format("{} does not have the size in its header", file.name),
         fmt::format("{} bytes", content.size()), std::to_string(expected));
  }
  file.values.assign(content.begin() + static_cast<std::ptrdiff_t>(header), content.end());
  return file;
}

}  // namespace

Images read_idx(const std::filesystem::path& folder, Split split, int64_t limit) {
  IdxFile labels = read(folder, "train-labels-idx1-ubyte", kLabelsMagic);
  if (labels.values.empty()) fail(fmt::format("number of labels in {}", labels.name), "0", ">= 1");
  const int64_t classes = 1 + *std::max_element(labels.values.begin(), labels.values.end());
  const bool training = split == Split::train;
  if (!training) labels = read(folder, "t10k-labels-idx1-ubyte", kLabelsMagic);
  IdxFile pixels =
      read(folder, training ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte", kImagesMagic);
  if (labels.sizes[0] != pixels.sizes[0]) {
    fail(fmt::format("number of labels in {}", labels.name), std::to_string(labels.sizes[0]),
         fmt::format("{} as in {}", pixels.sizes[0], pixels.name));
  }
  const auto wrong = std::find_if(labels.values.begin(), labels.values.end(),
                                  [&](uint8_t label) { return label >= classes; });
  if (wrong != labels.values.end()) {
    fail(fmt::format("label {} in {}", wrong - labels.values.begin(), labels.name),
         std::to_string(*wrong), fmt::format("0 to {} as in training", classes - 1));
  }
  Images images{.shape = {1, pixels.sizes[1], pixels.sizes[2]},
                .classes = classes,
                .pixels = std::move(pixels.values),
                .labels = std::move(labels.values)};
  if (limit > 0 && limit < images.size()) {
    images.labels.resize(static_cast<size_t>(limit));
    images.pixels.resize(static_cast<size_t>(limit * images.shape.bytes()));
  }
  return images;
}

Normalisation idx_normalisation() {
  return {{0.1307}, {0.3081}};
}

}  // namespace troika::data
