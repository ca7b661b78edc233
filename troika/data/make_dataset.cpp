#include "troika/data/make_dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/data/byte_text.h"
#include "troika/data/captions.h"
#include "troika/data/cifar.h"
#include "troika/data/fail.h"
#include "troika/data/idx.h"
#include "troika/data/shapes.h"

namespace troika::data {

namespace {

struct Request {
  const DataOptions& options;
  Split split;
  int64_t samples;  // of this split; 0: all, not for generated data sets
  bool augment;

  std::unique_ptr<Dataset> images(Images images, Normalisation normalisation,
                                  const Augmentation& augmentation) const {
    return std::make_unique<ImageDataset>(std::move(images), std::move(normalisation),
                                          augment ? augmentation : Augmentation{});
  }
};

std::unique_ptr<Dataset> make_shapes(const Request& want) {
  return want.images(render_shapes(want.options.seed, want.split, want.samples),
                     shapes_normalisation(), kShapesAugmentation);
}

std::unique_ptr<Dataset> make_shape_masks(const Request& want) {
  return want.images(render_shape_masks(want.options.seed, want.split, want.samples),
                     shapes_normalisation(), kShapesAugmentation);
}

std::unique_ptr<Dataset> make_captions(const Request& want) {
  return std::make_unique<Captions>(want.split,
                                    CaptionsOptions{.seed = want.options.seed,
                                                    .frames = want.options.frames,
                                                    .feature_width = want.options.feature_width,
                                                    .count = want.samples});
}

std::unique_ptr<Dataset> make_cifar10(const Request& want) {
  return want.images(read_cifar10(want.options.path, want.split, want.samples),
                     cifar10_normalisation(), kCifarAugmentation);
}

std::unique_ptr<Dataset> make_cifar100(const Request& want) {
  return want.images(read_cifar100(want.options.path, want.split, want.samples),
                     cifar100_normalisation(), kCifarAugmentation);
}

std::unique_ptr<Dataset> make_idx(const Request& want) {
  return want.images(read_idx(want.options.path, want.split, want.samples), idx_normalisation(),
                     kIdxAugmentation);
}

std::unique_ptr<Dataset> make_text(const Request& want) {
  return std::make_unique<ByteText>(
      std::vector<std::filesystem::path>(want.options.files.begin(), want.options.files.end()),
      want.split,
      ByteTextOptions{.context = want.options.context,
                      .validation_fraction = want.options.validation_fraction,
                      .limit = want.samples,
                      .shift_each_epoch = want.augment});
}

// The kind of input of a data set: options for another kind are refused.
enum class Source { generated, folder, files };

struct Row {
  const char* name;
  Source source;
  std::unique_ptr<Dataset> (*make)(const Request&);
  // Default numbers of samples of generated data sets.
  int64_t train = 0;
  int64_t validation = 0;

  int64_t samples(Split split, const DataOptions& options) const {
    const bool training = split == Split::train;
    const int64_t asked = training ? options.train_samples : options.validation_samples;
    if (asked < 0) {
      fail(training ? "training samples" : "validation samples", std::to_string(asked),
           ">= 1, or 0 for all");
    }
    return asked > 0 ? asked : training ? train : validation;
  }
};

constexpr std::array kRows{
    Row{"shapes", Source::generated, make_shapes, kShapesTrain, kShapesValidation},
    Row{"shape_masks", Source::generated, make_shape_masks, kShapesTrain, kShapesValidation},
    Row{"captions", Source::generated, make_captions, kCaptionsTrain, kCaptionsValidation},
    Row{"cifar10", Source::folder, make_cifar10},
    Row{"cifar100", Source::folder, make_cifar100},
    Row{"idx", Source::folder, make_idx},
    Row{"text", Source::files, make_text},
};

void check_source(const Row& row, const DataOptions& options) {
  const bool folder = row.source == Source::folder;
  if (folder && options.path.empty()) {
    fail(fmt::format("path of {}", row.name), "none", "the folder with its files");
  }
  if (!folder && !options.path.empty()) {
    fail(fmt::format("{} reads no folder", row.name), fmt::format("path {}", options.path), "");
  }
  if (row.source == Source::files && options.files.empty()) {
    fail(fmt::format("files of {}", row.name), "none", "at least one");
  }
  if (row.source != Source::files && !options.files.empty()) {
    fail(fmt::format("{} reads no list of files", row.name),
         fmt::format("files {}", fmt::join(options.files, ", ")), "");
  }
}

const Row& find(const std::string& name) {
  const auto* row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == name; });
  if (name.empty()) {
    fail("data.name is empty, as in the options of a run whose data a program gave", "none",
         fmt::format("one of {}", fmt::join(dataset_names(), ", ")),
         "the program that made the run has its data");
  }
  if (row == kRows.end()) {
    fail("unknown data set", name, fmt::format("one of {}", fmt::join(dataset_names(), ", ")),
         fmt::format("did you mean {}?", nearest(name, dataset_names())));
  }
  return *row;
}

}  // namespace

const std::vector<std::string>& dataset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& row : kRows) all.emplace_back(row.name);
    return all;
  }();
  return names;
}

std::unique_ptr<Dataset> make_dataset(const DataOptions& options, Split split) {
  const Row& row = find(options.name);
  check_source(row, options);
  auto dataset = row.make({.options = options,
                           .split = split,
                           .samples = row.samples(split, options),
                           .augment = split == Split::train && options.augment});
  dataset->set_name(options.name);
  return dataset;
}

int64_t count_samples(const DataOptions& options, Split split) {
  const Row& row = find(options.name);
  if (row.source != Source::generated) return make_dataset(options, split)->size();
  check_source(row, options);
  return row.samples(split, options);
}

}  // namespace troika::data
