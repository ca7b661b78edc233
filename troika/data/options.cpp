#include "troika/data/options.h"

#include "troika/base/config.h"

namespace troika::data {

namespace {

using config::at_least;
using config::between;
using config::count_from;
using config::one_of_or_none;

// Adds the options that make_dataset() reads besides the name.
void add_dataset(config::Table& table, DataOptions& options) {
  table.add("data.path", &options.path, "cifar10, cifar100 and idx: folder of the files");
  table.add("data.files", &options.files, "text: the files to read, one after another");
  table.add("data.train_samples", &options.train_samples,
            "train on the first N samples; 0: all (10000 if they are generated)",
            at_least(int64_t{0}));
  table.add("data.validation_samples", &options.validation_samples,
            "validate on the first N samples; 0: all (2000 if they are generated)",
            at_least(int64_t{0}));
  table.add("data.frames", &options.frames, "captions: frames of a video", at_least(int64_t{6}));
  table.add("data.feature_width", &options.feature_width, "captions: features of a frame",
            at_least(int64_t{1}));
  table.add("data.context", &options.context, "text: length of a sample in bytes",
            at_least(int64_t{1}));
  table.add("data.validation_fraction", &options.validation_fraction,
            "text: fraction at the end that is held out for validation", between(0.0, 1.0));
  table.add("data.augment", &options.augment, "random crops and flips of training images");
}

}  // namespace

void add_options(config::Table& table, RunDataOptions& options) {
  table.add("data.name", &options.name,
            "data set; empty in the options of a run whose data come from a program",
            one_of_or_none(dataset_names()));
  if (!options.name.empty()) add_dataset(table, options);
  table.add("data.batch_size", &options.batch_size, "samples of each process in a step",
            count_from(1));
  table.add(
      "data.global_batch_size", &options.global_batch_size,
      "samples of all processes together in a step, in place of batch_size; 0: batch_size is used",
      count_from(0));
  table.add("data.workers", &options.workers, "threads of each process that load batches ahead",
            between(int64_t{0}, int64_t{1024}));
  table.add("data.prefetch", &options.prefetch, "number of batches that are loaded ahead",
            between(int64_t{1}, int64_t{65536}));
  for (const char* name : {"data", "dataset"}) table.add_known_as(name, "data.name");
  for (const char* name : {"bs", "per_device_train_batch_size"}) {
    table.add_known_as(name, "data.batch_size");
  }
  for (const char* name : {"num_workers", "dataloader_num_workers"}) {
    table.add_known_as(name, "data.workers");
  }
}

}  // namespace troika::data
