"""Facts of MiniMax-M3's wire format that the tokenizer needs: its added tokens, and the fixed texts of the chat template,
which stand at the head of every conversation."""
import json

NS, BOD, BOS, EOS = "]<]minimax[>[", "]~!b[", "]~b]", "[e~["
PAD, UNK = "]!p~[", "]!d~["
THINK, END_THINK = "<mm:think>", "</mm:think>"
IDENTITY = ("Your model version is MiniMax-M3, developed by MiniMax. Knowledge cutoff: January 2026. "
            "Founded in early 2022, MiniMax is a global AI foundation model company committed to "
            "advancing the frontiers of AI towards AGI.")
DEFAULT_DEVELOPER = "You are a helpful assistant."
EXPLANATION = ("You have a thinking capability that allows you to reason step by step before responding. "
               "When thinking is enabled, wrap your reasoning in " + THINK + END_THINK + " tags before your response. "
               "When thinking is disabled, begin your response directly after the " + END_THINK + " prefix. "
               "When thinking is adaptive, decide on your own whether to think for the current turn.\n")
MODES = {
    "enabled": "Current thinking mode: enabled. You MUST think step by step before every response, "
               "including after receiving function/tool results.\n",
    "disabled": "Current thinking mode: disabled. Do not output any thinking process.\n",
    "adaptive": "Current thinking mode: adaptive. You are encouraged to think for complex "
                "decision-making, multi-step reasoning, or when analyzing function/tool results.\n",
}
TOOLS_HEAD = ("\n\n# Tools\nYou may call one or more tools to assist with the user query.\n"
              "Here are the tools available in JSONSchema format:\n\n<tools>\n")
TOOLS_TAIL = (f"</tools>\n\nTo call tools, wrap all invocations in a single {NS}<tool_call>{NS}</tool_call> block. "
              "Parameter values containing nested objects or arrays are recursively expanded into XML elements. "
              f"Example:\n\n{NS}<tool_call>\n"
              f'{NS}<invoke name="tool-name-1">{NS}<param-1>value-1{NS}</param-1>{NS}<param-2>{NS}<item>'
              f"{NS}<key-a>val-a{NS}</key-a>{NS}<key-b>val-b{NS}</key-b>{NS}</item>{NS}</param-2>{NS}</invoke>\n"
              f'{NS}<invoke name="tool-name-2">{NS}<param-1>value-1{NS}</param-1>{NS}</invoke>\n'
              f"{NS}</tool_call>")

# In order; the first one gets the id after the last merge. The first 50 are special (dropped from decoded text), the
# rest are not.
ADDED = [
    PAD, "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<reponame>", "<filename>", "<gh_stars>",
    "<issue_start>", "<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>", "<jupyter_code>",
    "<jupyter_output>", "<empty_output>", "<commit_before>", "<commit_msg>", "<commit_after>", BOS, EOS, UNK,
    "<function_call>", "<code_interpreter>", "]<]speech[>[", "]<]image[>[", "]<]video[>[", "]<]start of speech[>[",
    "]<]end of speech[>[", "]<]start of image[>[", "]<]end of image[>[", "]<]start of video[>[", "]<]end of video[>[",
    "]<]vision pad[>[", BOD, "<jupyter_error>", "<add_file>", "<delete_file>", "<rename_file>", "<edit_file>",
    "<commit_message>", "<empty_source_file>", "<repo_struct>", "<code_context>", "<file_content>", "<source_files>",
    "<pr_start>", "<review_comment>", "<filepath>", "<file_sep>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "]<]frame[>[", "]<]start of frame[>[", "]<]end of frame[>[", "<|content_altered_placeholder|>", NS, THINK,
         END_THINK]
SPECIAL = 50


def head(mode, developer=None, root=None, tools=None):
    """Everything before the first turn. mode None renders as adaptive, an unknown mode without a mode line."""
    text = f"{BOD}{BOS}system\n{root or IDENTITY}\n\n<thinking_instructions>\n{EXPLANATION}"
    text += MODES.get(mode or "adaptive", "") + f"</thinking_instructions>{EOS}\n"
    text += f"{BOS}developer\n{developer or DEFAULT_DEVELOPER}"
    if tools:
        text += TOOLS_HEAD
        text += "".join("<tool>" + json.dumps(t, ensure_ascii=False) + "</tool>\n" for t in tools)
        text += TOOLS_TAIL
    return text + f"{EOS}\n"
