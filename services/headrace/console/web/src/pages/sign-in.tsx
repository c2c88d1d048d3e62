// The token is exchanged for a cookie once, and kept nowhere else.
import { useState } from "preact/hooks";
import { Field } from "../parts/form";
import { Card, Page, ProblemBox } from "../parts/layout";
import { act, Problem } from "../state/api";
import { signedIn } from "../state/live";

export default function SignIn() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    try {
      await act("POST", "/session", { token });
      signedIn.value = true;
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem(0, { detail: String(error) }));
    }
  };
  return (
    <Page title="Sign in" lead="This console requires a token. Ask its administrator for one.">
      {problem && <ProblemBox message={problem.message} remedy={problem.remedy} />}
      <Card>
        <form class="filters" onSubmit={submit}>
          <Field label="Token" wide>
            <input
              type="password"
              autocomplete="current-password"
              required
              value={token}
              onInput={(event) => setToken(event.currentTarget.value)}
            />
          </Field>
          <button type="submit" class="button primary">Sign in</button>
        </form>
      </Card>
    </Page>
  );
}
