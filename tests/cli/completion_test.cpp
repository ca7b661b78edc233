// `troika completion bash`, in a bash that completes as when Tab is pressed.
#include <gmock/gmock.h>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"

namespace troika {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;

// The completions of the last word; bash has cut the line into `words`.
std::vector<std::string> complete(const std::string& words) {
  const TemporaryFolder folder;
  write_file_atomically(
      folder / "script",
      "source <(" TROIKA_PROGRAM " completion bash) || exit 1\nCOMP_WORDS=(troika " + words +
          ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_troika\n"
          "[ ${#COMPREPLY[@]} = 0 ] || printf '%s\\n' \"${COMPREPLY[@]}\"\n");
  const auto outcome = testing_support::run_program("exec bash " + (folder / "script").string());
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  auto lines = split(outcome.out, '\n');
  lines.pop_back();
  return lines;
}

TEST(Completion, KnowsCommandsOptionsKeysAndValues) {
  EXPECT_THAT(complete("tr"), ElementsAre("train"));
  EXPECT_THAT(complete("''"), IsSupersetOf({"train", "test", "launch", "slurm", "completion"}));
  EXPECT_THAT(complete("train --trainer.max_e"), ElementsAre("--trainer.max_epochs="));
  EXPECT_THAT(complete("train run.toml --print"), ElementsAre("--print-config"));
  EXPECT_THAT(complete("test --trainer.strategy = zero"), ElementsAre("zero1", "zero2", "zero3"));
  EXPECT_THAT(complete("train --trainer.trace = "), AllOf(Contains("true"), Contains("false")));
  EXPECT_THAT(complete("train --trainer.strategy dil"), ElementsAre("diloco"));
  EXPECT_THAT(complete("slurm "), Not(Contains("train")));
  EXPECT_THAT(complete("slurm su"), ElementsAre("submit"));
  EXPECT_THAT(complete("slurm submit --dry"), ElementsAre("--dry-run"));
  EXPECT_THAT(complete("launch --max"), Contains("--max-restarts"));
  // Options of the configuration are those of commands that take them; files are bash's business.
  EXPECT_THAT(complete("launch --trainer.max_e"), IsEmpty());
  EXPECT_THAT(complete("train run"), IsEmpty());
}

}  // namespace
}  // namespace troika
