// Configuration: the input as a TOML file, then each of its lines as a command-line argument.
#include <fmt/format.h>

#include "tests/fuzz/fuzz.h"
#include "troika/base/config.h"
#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::fuzz {

namespace {

// One option of each type, with rules of each kind.
struct Options {
  bool flag = false;
  int64_t count = 3;
  double rate = 0.1;
  std::string name = "adam";
  std::string share = "0.5";
  std::vector<std::string> names = {"a"};
  std::vector<int64_t> numbers = {1, 2};

  config::Table table() {
    config::Table table;
    table.add("trainer.flag", &flag, "A flag.");
    table.add("trainer.count", &count, "A count.", config::count_from(0));
    table.add("optim.rate", &rate, "A rate.", config::above_to(0.0, 1.0));
    table.add("optim.name", &name, "A name.", config::one_of({"adam", "sgd"}));
    table.add("trainer.share", &share, "A share.", config::number_or_share());
    table.add("trainer.names", &names, "Names.", config::some_of({"a", "b", "c"}));
    table.add("data.numbers", &numbers, "Numbers.");
    table.add_alias("trainer.steps", "trainer.count");
    return table;
  }
};

}  // namespace

std::vector<std::string> seeds() {
  Options defaults;
  return {defaults.table().to_toml(),
          "[optim]\nname = {name = \"sgd\"}\nrate = 1e-3\n[data]\nnumbers = [1, -2, 0x10]\n",
          "--trainer.count=5\n--optim.rate=0.5\n--trainer.names=a,b\n--data.numbers=1,2\n",
          "--trainer.flag=true\n--trainer.share=25%\n--trainer.steps=7\n--optim.name=sgd\n"};
}

void run(std::string_view input) {
  {
    Options options;
    auto table = options.table();
    try {
      table.parse(input, "fuzz.toml");
      // Accepted options are written in a form that can be read again.
      Options again;
      again.table().parse(table.to_toml(), "again.toml");
    } catch (const Error&) {
    }
  }
  Options options;
  auto table = options.table();
  for (size_t start = 0; start < input.size();) {
    const size_t end = std::min(input.find('\n', start), input.size());
    try {
      table.set_argument(input.substr(start, end - start));
    } catch (const Error&) {
    }
    start = end + 1;
  }
}

}  // namespace troika::fuzz
