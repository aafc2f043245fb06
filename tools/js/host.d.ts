// What the page's scripts find when they run: what Airflow's UI has put into the window, and what the API answers.
import type * as ReactModule from "react";
import type { components, paths } from "answers";

// Of Chakra's properties nothing is checked: its types are larger than the page.
type Chakra = ReactModule.FunctionComponent<any> & { [part: string]: ReactModule.FunctionComponent<any> };
type Question<R extends Route> = paths[R]["get"]["parameters"];

declare global {
  var ReactRouterDOM: {
    useSearchParams(): [URLSearchParams, (params: string[][], options?: { replace?: boolean }) => void];
  };
  var ChakraUI: Record<string, Chakra>;
  var AirflowPlugin: (props: any) => ReactNode;

  type ReactNode = ReactModule.ReactNode;
  type Style = ReactModule.CSSProperties;
  /** Properties that are handed on to a component of Chakra, or to an element. */
  type Props = Record<string, any>;
  /** A component with these properties. */
  type Part<P = Props> = (props: P & { children?: ReactNode }) => ReactNode;

  /** What the API answers, by the names that OpenAPI has for it. */
  type Schemas = components["schemas"];
  type Condition = Schemas["Condition"];
  type Checkpoint = Schemas["CheckpointListed"];
  type Timed = Schemas["Timed"];
  type SourceLag = Schemas["SourceLag"];
  type Savepoint = Schemas["Savepoint"];
  /** A pipeline that is open. */
  type Opened = Timestamped<Schemas["Pipeline"]>;

  /** The routes of the API that answer to GET. */
  type Route = { [R in keyof paths]: paths[R] extends { get: object } ? R : never }[keyof paths];
  type Answer<R extends Route> = paths[R]["get"]["responses"][200]["content"]["application/json"];
  /** What the braces of a route stand for, and what may follow its question mark. */
  type Filled<R extends Route> = Question<R> extends { path: infer P } ? P : {};
  type Asked<R extends Route> = Question<R> extends { query?: infer Q } ? Q : {};
  /** The address of a route, filled in. */
  type Address<R extends Route> = string & { readonly of: R };
  /** An answer, and the time at which it was asked for. */
  type Timestamped<A> = A & { now: string };
  /** What has come of asking, so far. */
  type Answered<A> = { data: Timestamped<A> | null; error: string; loading: boolean; reload: () => void };

  /** What a run of a maintenance DAG is asked to do. */
  type Params = { action: string; [name: string]: unknown };

  /** What stands in the braces of a text. */
  type Names<T extends string> = T extends `${string}{${infer Name}}${infer Rest}` ? Name | Names<Rest> : never;

  /** What the address of the page says, and a way to another one; "" takes a part of it away. */
  type Query = Record<string, string>;
  type Go = (changes: Record<string, string | number>, instead?: boolean) => void;
}
