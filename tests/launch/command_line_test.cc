#include "launch/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launch/exit_code.h"

namespace twinstream {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<CommandLine> Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "twinstream");
  return ParseCommandLine(static_cast<int>(words.size()), words.data());
}

CommandLine Parsed(const std::vector<const char*>& words) {
  const absl::StatusOr<CommandLine> line = Parse(words);
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? *line : CommandLine();
}

std::string ErrorOf(const std::vector<const char*>& words) {
  const absl::Status status = Parse(words).status();
  EXPECT_EQ(ExitCodeOf(status), 2);
  return std::string(status.message());
}

TEST(CommandLineTest, FlagsTakeTheirValueWithEqualsSignOrAsTheNextWord) {
  const CommandLine line = Parsed({"train", "--override=parallel { tensor: 2 }", "job.textproto",
                                   "--override", "train { steps: 5 }", "--resume", "auto"});
  EXPECT_EQ(line.command, Command::kTrain);
  EXPECT_THAT(line.positional, ElementsAre("job.textproto"));
  EXPECT_THAT(line.overrides, ElementsAre("parallel { tensor: 2 }", "train { steps: 5 }"));
  EXPECT_EQ(line.resume, "auto");
}

TEST(CommandLineTest, EveryCommandTakesItsFlags) {
  EXPECT_EQ(Parsed({"train", "j"}).resume, "none");
  EXPECT_EQ(Parsed({"validate", "j", "--ranks=64"}).ranks, 64);
  EXPECT_EQ(Parsed({"verify", "j", "--override="}).command, Command::kVerify);
  EXPECT_EQ(Parsed({"plan", "j", "--ranks", "8"}).ranks, 8);
  EXPECT_THAT(Parsed({"inspect", "a", "b"}).positional, ElementsAre("a", "b"));
  EXPECT_EQ(Parsed({"export", "c", "--output=d"}).format, "safetensors");
  EXPECT_EQ(Parsed({"evaluate", "j", "--checkpoint=c"}).checkpoint, "c");
  const CommandLine generate = Parsed({"generate", "--checkpoint=c", "--prompt=--a=b", "--tokens=0",
                                       "--temperature=0", "--seed=18446744073709551615"});
  EXPECT_EQ(generate.prompt, "--a=b");
  EXPECT_EQ(generate.tokens, 0);
  EXPECT_EQ(generate.temperature, 0);
  EXPECT_EQ(generate.seed, 18446744073709551615u);
}

TEST(CommandLineTest, PrepareDataTakesFilesByCommaAndByShellPattern) {
  const CommandLine line = Parsed({"prepare-data", "--input=a,b", "--input", "c", "d", "--output=p",
                                   "--tokenizer=bytes", "--validation=0.1", "e"});
  EXPECT_THAT(line.inputs, ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_THAT(line.positional, IsEmpty());
  EXPECT_EQ(line.validation, 0.1);
}

TEST(CommandLineTest, UnknownNamesLeadToKnownOnes) {
  EXPECT_THAT(ErrorOf({"trian", "j"}),
              HasSubstr("unknown command \"trian\"; there are train, validate,"));
  EXPECT_THAT(ErrorOf({"help", "prepare"}), HasSubstr("unknown command \"prepare\""));
  EXPECT_THAT(ErrorOf({"train", "j", "--resum=auto"}),
              HasSubstr("train has no flag --resum; did you mean --resume?"));
  EXPECT_THAT(ErrorOf({"validate", "j", "-r", "3"}), HasSubstr("validate has no flag -r"));
  EXPECT_THAT(ErrorOf({"inspect", "c", "--override=x"}), HasSubstr("inspect has no flag"));
}

TEST(CommandLineTest, HostileArgumentsAreRefusedInWords) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("no command given"));
  EXPECT_THAT(ErrorOf({""}), HasSubstr("unknown command \"\""));
  EXPECT_THAT(ErrorOf({"--override=x", "train", "j"}), HasSubstr("unknown command"));
  EXPECT_THAT(ErrorOf({"train"}), HasSubstr("train needs JOB; usage: twinstream train JOB "));
  EXPECT_THAT(ErrorOf({"train", "a", "b"}), HasSubstr("superfluous argument \"b\""));
  EXPECT_THAT(ErrorOf({"train", "j", "--override"}), HasSubstr("--override needs a value"));
  EXPECT_THAT(ErrorOf({"train", "j", "--override", "--resume=auto"}),
              HasSubstr("--override needs a value"));
  EXPECT_THAT(ErrorOf({"train", "j", "--resume="}), HasSubstr("--resume= does not read as"));
  EXPECT_THAT(ErrorOf({"train", "j",
                       "--"
                       "=x"}),
              HasSubstr("train has no flag --"));
  EXPECT_THAT(ErrorOf({"export", "c"}), HasSubstr("export needs --output=DIR"));
  EXPECT_THAT(ErrorOf({"generate", "--checkpoint=c"}), HasSubstr("generate needs --prompt=TEXT"));
  EXPECT_THAT(ErrorOf({"prepare-data", "--input=,", "--output=p", "--tokenizer=bytes"}),
              HasSubstr("--input names no file"));
  for (const char* ranks : {"0", "-1", "2147483648", "99999999999999999999", "four", "1.5", ""}) {
    EXPECT_THAT(ErrorOf({"validate", "j", "--ranks", ranks}), HasSubstr("does not read as N"));
  }
  for (const char* temperature : {"-0.1", "nan", "inf", "hot"}) {
    EXPECT_THAT(ErrorOf({"generate", "--checkpoint=c", "--prompt=x", "--temperature", temperature}),
                HasSubstr("does not read as T"));
  }
  EXPECT_THAT(
      ErrorOf({"prepare-data", "--input=a", "--output=p", "--tokenizer=bytes", "--validation=1"}),
      HasSubstr("--validation=1 does not read as FRACTION"));
}

TEST(CommandLineTest, TwoDashesEndTheFlags) {
  EXPECT_THAT(Parsed({"inspect", "--", "--odd-name"}).positional, ElementsAre("--odd-name"));
}

TEST(CommandLineTest, HelpListsEveryCommandAndEachCommandItsFlags) {
  const std::string help = HelpText(Command::kNone);
  for (const char* name : {"train", "validate", "verify", "plan", "inspect", "export", "evaluate",
                           "generate", "prepare-data"}) {
    EXPECT_THAT(help, HasSubstr(std::string("  twinstream ") + name));
    const CommandLine line = Parsed({name, "--help"});
    EXPECT_TRUE(line.help);
    EXPECT_EQ(Parsed({"help", name}).command, line.command);
    EXPECT_THAT(HelpText(line.command), HasSubstr(std::string("twinstream ") + name));
  }
  EXPECT_THAT(help, HasSubstr("twinstream train JOB [--override=TEXTPROTO]... "
                              "[--resume=none|auto|DIR]\n"));
  EXPECT_THAT(HelpText(Command::kGenerate), HasSubstr("--temperature=T"));
  EXPECT_TRUE(Parsed({"--help"}).help);
  EXPECT_TRUE(Parsed({"--version"}).version);
}

TEST(ExitCodeTest, SaysWhoCanMendIt) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("x")), 2);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("x")), 2);
  EXPECT_EQ(ExitCodeOf(absl::FailedPreconditionError("x")), 2);
  EXPECT_EQ(ExitCodeOf(absl::UnimplementedError("x")), 2);
  EXPECT_EQ(ExitCodeOf(absl::OutOfRangeError("x")), 2);
  EXPECT_EQ(ExitCodeOf(absl::CancelledError("x")), 3);
  EXPECT_EQ(ExitCodeOf(absl::DataLossError("x")), 1);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("x")), 1);
}

}  // namespace
}  // namespace twinstream
