#include "troika/train/task/data_module.h"

#include <string>

#include "troika/base/error.h"

namespace troika::train {

namespace {

[[noreturn]] void refuse_missing(const std::string& name) {
  throw Error("train", ErrorKind::usage,
              {.what = "the data module has no such data",
               .got = "no " + name,
               .expected = "a data module that overrides it"});
}

}  // namespace

const data::Dataset& DataModule::train_dataset() {
  refuse_missing("train_dataset()");
}

const data::Dataset& DataModule::val_dataset() {
  refuse_missing("val_dataset()");
}

const data::Dataset& DataModule::test_dataset() {
  refuse_missing("test_dataset()");
}

const data::Dataset& DataModule::predict_dataset() {
  refuse_missing("predict_dataset()");
}

}  // namespace troika::train
