#include "troika/data/cifar.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"

namespace troika::data {

namespace {

constexpr ImageShape kShape{.channels = 3, .height = 32, .width = 32};
constexpr int kTrainingFiles = 5;

// Layout of a record. In both data sets, the label used is the last of the label bytes.
struct Layout {
  int64_t label_bytes;
  int64_t classes;
  const char* archive;

  int64_t record_bytes() const { return label_bytes + kShape.bytes(); }
};
constexpr Layout kCifar10{1, 10, "cifar-10-binary.tar.gz"};
constexpr Layout kCifar100{2, 100, "cifar-100-binary.tar.gz"};

[[noreturn]] void fail_missing(const std::string& file, const std::filesystem::path& folder,
                               const Layout& layout) {
  throw Error("data", ErrorKind::usage,
              {.what = fmt::format("no {} in {}", file, folder.string()),
               .hint = fmt::format("unpack https://www.cs.toronto.edu/~kriz/{} and give the folder "
                                   "with the .bin files",
                                   layout.archive)});
}

void append(const std::filesystem::path& file, const Layout& layout, int64_t limit,
            Images* images) {
  const std::string content = read_file(file);
  const auto bytes = static_cast<int64_t>(content.size());
  if (bytes == 0 || bytes % layout.record_bytes() != 0) {
    throw Error("data", ErrorKind::usage,
                {.what = fmt::format("{} is short or no CIFAR file", file.string()),
                 .got = fmt::format("{} bytes", bytes),
                 .expected = fmt::format("a multiple of {}", layout.record_bytes())});
  }
  const int64_t records = bytes / layout.record_bytes();
  for (int64_t i = 0; i < records && (limit == 0 || images->size() < limit); ++i) {
    const auto* pixels = reinterpret_cast<const uint8_t*>(content.data()) +
                         i * layout.record_bytes() + layout.label_bytes;
    const uint8_t label = pixels[-1];
    if (label >= layout.classes) {
      throw Error("data", ErrorKind::usage,
                  {.what = fmt::format("label of record {} in {}", i, file.string()),
                   .got = std::to_string(label),
                   .expected = fmt::format("0 to {}", layout.classes - 1),
                   .hint = "the file is corrupt or of another data set"});
    }
    images->labels.push_back(label);
    images->pixels.insert(images->pixels.end(), pixels, pixels + kShape.bytes());
  }
}

Images read_all(const std::vector<std::filesystem::path>& files, const Layout& layout,
                int64_t limit) {
  Images images{.shape = kShape, .classes = layout.classes};
  for (const auto& file : files) {
    if (limit > 0 && images.size() >= limit) break;
    append(file, layout, limit, &images);
  }
  return images;
}

Images read_one(const std::filesystem::path& folder, const std::string& file, const Layout& layout,
                int64_t limit) {
  if (!std::filesystem::exists(folder / file)) fail_missing(file, folder, layout);
  return read_all({folder / file}, layout, limit);
}

}  // namespace

Images read_cifar10(const std::filesystem::path& folder, Split split, int64_t limit) {
  if (split == Split::validation) return read_one(folder, "test_batch.bin", kCifar10, limit);
  std::vector<std::filesystem::path> files;
  for (int i = 1; i <= kTrainingFiles; ++i) {
    auto file = folder / fmt::format("data_batch_{}.bin", i);
    if (std::filesystem::exists(file)) files.push_back(std::move(file));
  }
  if (files.empty()) fail_missing("data_batch_1.bin to data_batch_5.bin", folder, kCifar10);
  if (files.size() < kTrainingFiles) {
    log::warn("{} has {} of the {} training files of CIFAR-10", folder.string(), files.size(),
              kTrainingFiles);
  }
  return read_all(files, kCifar10, limit);
}

Images read_cifar100(const std::filesystem::path& folder, Split split, int64_t limit) {
  return read_one(folder, split == Split::train ? "train.bin" : "test.bin", kCifar100, limit);
}

Normalisation cifar10_normalisation() {
  return {{0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}};
}

Normalisation cifar100_normalisation() {
  return {{0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}};
}

}  // namespace troika::data
